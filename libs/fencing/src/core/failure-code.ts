/**
 * What failed, in a word that may go into logs and health reports: the code of a system error or an SQLSTATE, else the first word of
 * an error of Redis (OOM, NOPERM, READONLY), else the class. Never the message: it may quote what the caller passed in.
 */
export function failureCode(error: unknown): string {
  const { code, name, message } = (error ?? {}) as { code?: unknown; name?: unknown; message?: unknown };
  if (typeof code === 'string' && /^[A-Z0-9_]{3,40}$/.test(code)) return code;
  const [first] = typeof message === 'string' ? message.split(' ', 1) : [];
  if (name === 'ReplyError' && first && /^[A-Z]{3,20}$/.test(first)) return first;
  return typeof name === 'string' && /^\w{1,60}$/.test(name) ? name : 'Error';
}
