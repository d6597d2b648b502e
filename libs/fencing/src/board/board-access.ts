import { type CanActivate, type ExecutionContext, ForbiddenException } from '@nestjs/common';

/** As much of a request as Express and Fastify have in common. */
export interface BoardRequest {
  readonly method: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket?: { readonly remoteAddress?: string };
}

/** What the page sends along, and a page elsewhere could not without asking first. */
export const BOARD_HEADER = 'x-fencing-board';

const LOOPBACK = /^(127\.\d+\.\d+\.\d+|::1|::ffff:127\.\d+\.\d+\.\d+)$/;
const LOCAL_HOST = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?$/i;
/** A request with one of these was passed on by somebody: where it came from is not known. */
const PASSED_ON = /^(forwarded|via|x-forwarded-.*|x-real-ip|x-client-ip|cf-connecting-ip|true-client-ip)$/;

/** What holds for every request to the board, before a guard of the application is asked. */
export class BoardAccess implements CanActivate {
  constructor(private readonly guarded: boolean) {}

  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<BoardRequest>();
    if (!this.guarded && !isLocal(request))
      throw new ForbiddenException(
        'The fencing board has no guard, so it answers requests from its own machine only. ' +
          'Give it one: FencingBoardModule.forRoot({ guard: AdminGuard }).',
      );
    // Whatever the application allows other origins: not this, and no revocation in the name of who is logged in.
    const changes = request.method !== 'GET' && request.method !== 'HEAD';
    const isVisit = !changes && request.headers['sec-fetch-mode'] === 'navigate';
    if (!isVisit && !isSameOrigin(request))
      throw new ForbiddenException('The fencing board answers its own page only, not one of another origin.');
    if (changes && request.headers[BOARD_HEADER] === undefined)
      throw new ForbiddenException(`The header ${BOARD_HEADER} is missing: only the board's page sends it.`);
    return true;
  }
}

/** From a process of this machine, not passed on, and meant for this machine (no name that a stranger points at it). */
function isLocal({ headers, socket }: BoardRequest): boolean {
  if (!LOOPBACK.test(socket?.remoteAddress ?? '')) return false;
  if (Object.keys(headers).some((name) => PASSED_ON.test(name))) return false;
  return LOCAL_HOST.test(one(headers.host));
}

/** A browser says so itself, in a header that no page can set; an older one names the origin. Other clients say nothing. */
function isSameOrigin({ headers }: BoardRequest): boolean {
  const site = headers['sec-fetch-site'];
  if (site !== undefined) return site === 'same-origin' || site === 'none';
  const { origin } = headers;
  if (origin === undefined) return true;
  try {
    return new URL(one(origin)).host === one(headers.host).toLowerCase();
  } catch {
    return false;
  }
}

function one(header: string | string[] | undefined): string {
  return typeof header === 'string' ? header : '';
}
