import type { Booked, DrillListener, DrillRecord, Published, SceneRecord, Step } from './events.js';

const COLUMNS = [
  { title: 'time', width: 7 },
  { title: 'who', width: 8 },
  { title: 'step', width: 48 },
  { title: 'operation', width: 13 },
  { title: 'owner', width: 8 },
  { title: 'generation', width: 16 },
  { title: 'accepted result', width: 30 },
] as const;

const RED = '31';
const GREEN = '32';
const BOLD = '1';

/** Prints a drill while it runs: one line per step, then the claims of the scenario. */
export class Table implements DrillListener {
  constructor(
    private readonly print: (line: string) => void,
    private readonly colours: boolean,
  ) {}

  began(fence: DrillRecord['fence']): void {
    if (fence === 'off') this.print(this.paint(RED, 'THE FENCE IS OFF: this is what a lock alone gives.'));
  }

  sceneBegan({ id, title }: SceneRecord): void {
    this.print('');
    this.print(this.paint(BOLD, `${id}. ${title}`));
    this.row(COLUMNS.map((column) => column.title));
    this.row(COLUMNS.map((column) => '-'.repeat(column.width)));
  }

  stepDone(step: Step): void {
    const { who, what, operation, owner, generation } = step;
    const time = `${(step.atMs / 1000).toFixed(2)} s`;
    const cells = [time, who, what, operation, owner && shortOwner(owner), generation, resultOf(step)];
    this.row(
      cells.map((cell) => String(cell ?? '')),
      step.overwritten && RED,
    );
  }

  sceneEnded({ claims }: SceneRecord): void {
    this.print('');
    for (const { text, holds, saw } of claims) {
      const verdict = holds ? this.paint(GREEN, 'PASS') : this.paint(RED, 'FAIL');
      this.print(`${verdict}  ${text}${saw === undefined ? '' : ` (${saw})`}`);
    }
  }

  ended({ fence, passed, failed, durationMs }: DrillRecord): void {
    this.print('');
    const seconds = (durationMs / 1000).toFixed(1);
    const text = `${passed + failed} claims: ${passed} passed, ${failed} failed, fence ${fence}, ${seconds} s`;
    this.print(this.paint(failed > 0 ? RED : GREEN, text));
  }

  /** Long cells go on in the next line, in their column. */
  private row(cells: readonly string[], colour?: string): void {
    const wrapped = cells.map((cell, i) => wrap(cell, COLUMNS[i]!.width));
    const height = Math.max(...wrapped.map((lines) => lines.length));
    for (let line = 0; line < height; line++) {
      const text = wrapped.map((lines, i) => (lines[line] ?? '').padEnd(COLUMNS[i]!.width)).join('  ');
      this.print(colour ? this.paint(colour, text.trimEnd()) : text.trimEnd());
    }
  }

  private paint(colour: string, text: string): string {
    return this.colours ? `\u001b[${colour}m${text}\u001b[0m` : text;
  }
}

/** Enough of an owner to tell two apart. */
export function shortOwner(owner: string): string {
  return owner.slice(0, 8);
}

export function resultText(result: Published | Booked): string {
  if ('entries' in result) return `${result.entries} entries, ${money(Number(result.totalCents))}`;
  return `entry ${result.entryId} of ${money(result.amountCents)}`;
}

function resultOf({ accepted, refused, overwritten }: Step): string {
  if (refused !== undefined) return `refused: ${refused}`;
  if (accepted === undefined) return '';
  if (overwritten) return `OVERWRITTEN by ${resultText(accepted)}`;
  return resultText(accepted);
}

const money = (cents: number) => (cents / 100).toFixed(2);

function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(' ')) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= width)
      lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}
