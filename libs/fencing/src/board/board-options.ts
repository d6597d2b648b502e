import type { CanActivate, ModuleMetadata, Type } from '@nestjs/common';
import type { Observable } from 'rxjs';
import { FencingConfigError } from '../core/errors.js';
import type { FencingEvent } from '../core/events.js';
import { checkFunction, checkInstanceName, checkNames, show } from '../core/options.js';

/** A guard of the board: a class that Nest makes, or an instance. */
export type BoardGuard = Type<CanActivate> | CanActivate;

/** Options of `FencingBoardModule.forRoot()`. */
export interface FencingBoardOptions {
  /**
   * Where the board is, below the application's global prefix.
   * @default '/fencing'
   */
  path?: string;
  /**
   * Who may see the board and revoke leases: a guard of yours, or several that must all agree. Without one it answers requests from
   * this machine only, and refuses to start where `NODE_ENV` is `production`.
   */
  guard?: BoardGuard | readonly BoardGuard[];
  /**
   * Modules that export what the guard injects.
   * @default none
   */
  imports?: ModuleMetadata['imports'];
  /**
   * The instance of `FencingModule` that it shows.
   * @default the one without a name
   */
  name?: string;
  /**
   * Who a request comes from, as the audit keeps it of a revocation: a text of up to 1000 characters.
   * @default 'the fencing board', for all
   */
  who?: (request: unknown) => string | undefined;
  /**
   * Events of other processes, to be shown too: the board itself hears those of its own application.
   * @default none
   */
  events?: Observable<FencingEvent>;
}

const WHERE = 'FencingBoardModule.forRoot';
const OPTIONS = ['path', 'guard', 'imports', 'name', 'who', 'events'];

/** @returns the guards. @throws FencingConfigError naming the option */
export function checkBoardOptions(options: FencingBoardOptions): readonly BoardGuard[] {
  checkNames(WHERE, options, OPTIONS);
  const { path, guard, imports, name, who, events } = options;
  checkInstanceName(WHERE, name);
  if (path !== undefined && (typeof path !== 'string' || !/^\/?[\w\-./]+$/.test(path)))
    throw new FencingConfigError(`${WHERE}: path must be a path such as '/fencing', got ${show(path)}.`);
  if (imports !== undefined && !Array.isArray(imports))
    throw new FencingConfigError(`${WHERE}: imports must be an array of modules, got ${show(imports)}.`);
  if (who !== undefined) checkFunction(WHERE, 'who', who);
  if (
    events !== undefined &&
    typeof (events as Partial<Observable<unknown>> | null)?.subscribe !== 'function'
  )
    throw new FencingConfigError(`${WHERE}: events must be an Observable, got ${show(events)}.`);
  // A guard that is there by name and missing by value is a mistake that would open the door.
  if ('guard' in options && (guard === undefined || guard === null))
    throw new FencingConfigError(`${WHERE}: guard is ${show(guard)}. Give a guard, or leave the option out.`);
  const guards: readonly BoardGuard[] = guard === undefined ? [] : isList(guard) ? guard : [guard];
  if (guard !== undefined && guards.length === 0)
    throw new FencingConfigError(`${WHERE}: guard is an empty array. Give a guard, or leave the option out.`);
  for (const one of guards) {
    const face = typeof one === 'function' ? (one.prototype as Partial<CanActivate> | undefined) : one;
    if (typeof face?.canActivate !== 'function')
      throw new FencingConfigError(`${WHERE}: guard must have a method canActivate, got ${show(one)}.`);
  }
  if (guards.length === 0 && process.env.NODE_ENV === 'production')
    throw new FencingConfigError(
      `${WHERE}: without a guard the board does not start where NODE_ENV is 'production'. ` +
        'Give it one: FencingBoardModule.forRoot({ guard: AdminGuard }).',
    );
  return guards;
}

function isList(guard: BoardGuard | readonly BoardGuard[]): guard is readonly BoardGuard[] {
  return Array.isArray(guard);
}
