import { Logger } from '@nestjs/common';
import type { FencingLogger } from '../core/logger.js';

const logger = new Logger('Fencing');

/** Nest's logger, which the application may have replaced: one that throws must not end the work that it is told of. */
export const containedLogger: FencingLogger = {
  warn: (message) => contain(() => logger.warn(message)),
  error: (message, cause) =>
    contain(() => logger.error(message, ...(cause instanceof Error ? [cause.stack] : []))),
};

function contain(say: () => void): void {
  try {
    say();
  } catch {
    // Nobody is left to tell.
  }
}
