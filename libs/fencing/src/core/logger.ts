/** Where the package tells an operator what happened. Nothing that a caller passed in is logged. */
export interface FencingLogger {
  warn(message: string): void;
  error(message: string, cause?: unknown): void;
}

export const silentLogger: FencingLogger = { warn: () => undefined, error: () => undefined };
