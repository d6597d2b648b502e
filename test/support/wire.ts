/**
 * Reads one proxied connection in the protocol that it speaks: which requests the client sent, and which of the server's
 * bytes belong to which request. Both directions may arrive in chunks of any size.
 */
export abstract class Wire {
  /** Requests whose reply is not complete, oldest first: both protocols answer in order. */
  protected readonly pending: Exchange[] = [];

  constructor(
    private readonly onMessage: (message: Message) => void,
    private readonly onRequest: (exchange: Exchange) => void,
  ) {}

  /** Takes in what the client sent. */
  abstract fromClient(chunk: Buffer): void;

  /** Cuts what the server sent into pieces; an incomplete end is kept for the next call. */
  abstract fromServer(chunk: Buffer): Piece[];

  protected begin(): Exchange {
    const exchange: Exchange = { text: '', swallowed: false };
    this.pending.push(exchange);
    return exchange;
  }

  protected message(exchange: Exchange, type: string, text: string): void {
    exchange.text = exchange.text && exchange.text !== text ? `${exchange.text}\n${text}` : text;
    this.onMessage({ type, text });
  }

  protected complete(exchange: Exchange): void {
    this.onRequest(exchange);
  }
}

/** One protocol message that asks for something. */
export interface Message {
  /** Redis: the command's name in capitals. PostgreSQL: Q (simple query), P (parse) or E (execute). */
  readonly type: string;
  /** Redis: the whole command, its parts joined by spaces. PostgreSQL: the SQL. */
  readonly text: string;
}

/** A request and the place of its reply; in PostgreSQL everything up to the next ReadyForQuery. */
export interface Exchange {
  text: string;
  swallowed: boolean;
}

/** Some of the server's bytes. */
export interface Piece {
  readonly bytes: Buffer;
  /** The request that they answer; none for a pushed message. */
  readonly exchange?: Exchange;
  /** Whether the reply ends with them. */
  readonly last: boolean;
}

/** The Redis protocol, RESP2 and RESP3. On a connection that subscribes, everything counts as pushed. */
export class RedisWire extends Wire {
  private sent = Buffer.alloc(0);
  private received = Buffer.alloc(0);
  private subscriber = false;

  fromClient(chunk: Buffer): void {
    this.sent = Buffer.concat([this.sent, chunk]);
    for (let command; (command = readCommand(this.sent));) {
      this.sent = this.sent.subarray(command.end);
      const type = command.parts[0]?.toUpperCase() ?? '';
      if (/^[PS]?SUBSCRIBE$/.test(type)) this.subscriber = true;
      const exchange = this.begin();
      this.message(exchange, type, command.parts.join(' '));
      this.complete(exchange);
    }
  }

  fromServer(chunk: Buffer): Piece[] {
    this.received = Buffer.concat([this.received, chunk]);
    const pieces: Piece[] = [];
    for (let end; (end = endOfReply(this.received, 0)) !== undefined;) {
      const bytes = this.received.subarray(0, end);
      this.received = this.received.subarray(end);
      const pushed = this.subscriber || bytes[0] === PUSH;
      pieces.push({ bytes, exchange: pushed ? undefined : this.pending.shift(), last: true });
    }
    return pieces;
  }
}

const PUSH = '>'.charCodeAt(0);

/** The line that starts at `at` without its CRLF, and where the next one starts. */
function readLine(buffer: Buffer, at: number): { line: string; end: number } | undefined {
  const end = buffer.indexOf('\r\n', at);
  return end < 0 ? undefined : { line: buffer.toString('latin1', at, end), end: end + 2 };
}

/** The command at the start of the buffer: an array of bulk strings, or one line of words. */
function readCommand(buffer: Buffer): { parts: string[]; end: number } | undefined {
  const head = readLine(buffer, 0);
  if (!head) return undefined;
  if (!head.line.startsWith('*')) return { parts: head.line.split(' '), end: head.end };
  const parts: string[] = [];
  let at = head.end;
  for (let left = Number(head.line.slice(1)); left > 0; left--) {
    const size = readLine(buffer, at);
    if (!size) return undefined;
    const end = size.end + Number(size.line.slice(1));
    if (buffer.length < end + 2) return undefined;
    parts.push(buffer.toString('utf8', size.end, end));
    at = end + 2;
  }
  return { parts, end: at };
}

/** Where the reply that starts at `at` ends, or undefined when it is not all there. */
function endOfReply(buffer: Buffer, at: number): number | undefined {
  const head = readLine(buffer, at);
  if (!head) return undefined;
  const size = Number(head.line.slice(1));
  let parts = 0;
  switch (head.line[0]) {
    case '$': // bulk string, and the texts of RESP3
    case '=':
    case '!': {
      const end = size < 0 ? head.end : head.end + size + 2;
      return buffer.length < end ? undefined : end;
    }
    case '*':
    case '~':
    case '>':
      parts = Math.max(0, size);
      break;
    case '%':
      parts = 2 * size;
      break;
    case '|': // attributes come in front of the value that they describe
      parts = 2 * size + 1;
      break;
  }
  let end: number | undefined = head.end;
  for (; parts > 0 && end !== undefined; parts--) end = endOfReply(buffer, end);
  return end;
}

/** The PostgreSQL protocol, version 3, without TLS. */
export class PostgresWire extends Wire {
  private sent = Buffer.alloc(0);
  private received = Buffer.alloc(0);
  private started = false;
  private bareAnswers = 0;
  private readonly statements = new Map<string, string>();
  private readonly portals = new Map<string, string>();
  /** What the client is building up to its next Sync. */
  private extended?: Exchange;

  fromClient(chunk: Buffer): void {
    this.sent = Buffer.concat([this.sent, chunk]);
    while (this.started ? this.readMessage() : this.readStart());
  }

  fromServer(chunk: Buffer): Piece[] {
    this.received = Buffer.concat([this.received, chunk]);
    const pieces: Piece[] = [];
    const cut = (length: number, exchange: Exchange | undefined, last: boolean) => {
      pieces.push({ bytes: this.received.subarray(0, length), exchange, last });
      this.received = this.received.subarray(length);
    };
    for (;;) {
      if (this.bareAnswers > 0 && this.received.length > 0) {
        this.bareAnswers--;
        cut(1, undefined, true);
        continue;
      }
      const length = this.received.length < 5 ? Infinity : 1 + this.received.readInt32BE(1);
      if (this.received.length < length) return pieces;
      const ready = this.received[0] === READY_FOR_QUERY;
      cut(length, this.pending[0], ready);
      if (ready) this.pending.shift();
    }
  }

  /** The first messages of a connection have no type; a request for encryption is answered by one bare byte. */
  private readStart(): boolean {
    const length = this.sent.length < 8 ? Infinity : this.sent.readInt32BE(0);
    if (this.sent.length < length) return false;
    const code = this.sent.readInt32BE(4);
    this.sent = this.sent.subarray(length);
    if (code === SSL_REQUEST || code === GSS_REQUEST) {
      this.bareAnswers++;
    } else {
      this.started = true;
      this.begin();
    }
    return true;
  }

  private readMessage(): boolean {
    const length = this.sent.length < 5 ? Infinity : 1 + this.sent.readInt32BE(1);
    if (this.sent.length < length) return false;
    const type = String.fromCharCode(this.sent[0]!);
    const [first = '', second = ''] = this.sent.toString('utf8', 5, length).split('\0', 2);
    this.sent = this.sent.subarray(length);
    if (type === 'Q') {
      const exchange = this.begin();
      this.message(exchange, 'Q', first);
      this.complete(exchange);
    } else if ('PBDECS'.includes(type)) {
      this.readExtended(type, first, second);
    }
    return true;
  }

  private readExtended(type: string, first: string, second: string): void {
    const exchange = (this.extended ??= this.begin());
    switch (type) {
      case 'P':
        this.statements.set(first, second);
        this.message(exchange, 'P', second);
        break;
      case 'B':
        this.portals.set(first, this.statements.get(second) ?? '');
        break;
      case 'E':
        this.message(exchange, 'E', this.portals.get(first) ?? '');
        break;
      case 'S':
        this.extended = undefined;
        this.complete(exchange);
    }
  }
}

const READY_FOR_QUERY = 'Z'.charCodeAt(0);
const SSL_REQUEST = 80877103;
const GSS_REQUEST = 80877104;
