import {
  type BeforeApplicationShutdown,
  type DynamicModule,
  Inject,
  Module,
  type OnApplicationShutdown,
} from '@nestjs/common';
import type { FencingEvents } from '../nest/fencing-events.js';
import type { FencingService } from '../nest/fencing.service.js';
import { DEFAULT_INSTANCE, fencingEventsToken, fencingServiceToken } from '../nest/tokens.js';
import { BoardAccess } from './board-access.js';
import { boardController } from './board.controller.js';
import { Board } from './board.js';
import { checkBoardOptions, type FencingBoardOptions } from './board-options.js';
import { BoardStreams } from './board-streams.js';

/**
 * A page that shows the leases of this process as they are taken, renewed and lost, which writes were accepted and refused, and
 * why; and that revokes a key.
 *
 * ```ts
 * FencingBoardModule.forRoot({ path: '/fencing', guard: AdminGuard, imports: [AuthModule] })
 * ```
 * It needs an HTTP application (Express or Fastify) that imports `FencingModule`. While it is mounted, events are computed.
 */
@Module({})
export class FencingBoardModule implements BeforeApplicationShutdown, OnApplicationShutdown {
  /** @internal */
  constructor(
    @Inject(Board) private readonly board: Board,
    @Inject(BoardStreams) private readonly streams: BoardStreams,
  ) {}

  /** @throws FencingConfigError where an option is wrong, and without a guard where `NODE_ENV` is `production` */
  static forRoot(options: FencingBoardOptions = {}): DynamicModule {
    const guards = checkBoardOptions(options);
    const { path = '/fencing', imports = [], name = DEFAULT_INSTANCE } = options;
    return {
      module: FencingBoardModule,
      imports: [...imports],
      controllers: [boardController(path, [new BoardAccess(guards.length > 0), ...guards])],
      providers: [
        {
          provide: Board,
          inject: [fencingServiceToken(name), fencingEventsToken(name)],
          useFactory: (fencing: FencingService, events: FencingEvents) =>
            new Board(name, fencing, events, options),
        },
        { provide: BoardStreams, inject: [Board], useFactory: (board: Board) => new BoardStreams(board) },
      ],
    };
  }

  /** A stream that stays open would keep the HTTP server from closing. */
  beforeApplicationShutdown(): void {
    this.streams.close();
  }

  onApplicationShutdown(): void {
    this.board.close();
  }
}
