import { recordOf, Scene } from './claims.js';
import { Table } from './table.js';

describe("the drill's table", () => {
  const play = (colours = false) => {
    const lines: string[] = [];
    const table = new Table((line) => lines.push(line), colours);
    table.began('off');
    const scene = new Scene('1a', 'A worker is stopped', () => 1_234, table);
    table.sceneBegan(scene);
    const grant = {
      operation: 'publish-1a-A',
      owner: '95a7e147-aaaa-bbbb',
      generation: 1_795_982_604_738_372,
    };
    scene.step('A', 'publishes', { ...grant, accepted: { entries: 3, totalCents: '600' } });
    scene.step('A', 'publishes again', { ...grant, refused: 'STALE_GENERATION' });
    scene.step('drill', 'reads the report', {
      accepted: { entries: 3, totalCents: '600' },
      overwritten: { entries: 4, totalCents: '1000' },
    });
    scene.step('Redis', 'does something that takes very many words to say, more than fit into one line');
    scene.claim('the stale write is refused', true, 'STALE_GENERATION');
    scene.claim("the report is B's", false);
    table.sceneEnded(scene);
    table.ended(recordOf([scene], 'off', 2_345));
    return lines;
  };

  it('keeps operation, owner, generation and accepted result apart', () => {
    const [row] = play().filter((line) => line.includes('publishes '));
    expect(row!.split(/ {2,}/)).toEqual([
      '1.23 s',
      'A',
      'publishes',
      'publish-1a-A',
      '95a7e147',
      '1795982604738372',
      '3 entries, 6.00',
    ]);
  });

  it('tells refused and overwritten from accepted', () => {
    const lines = play();
    expect(lines.find((line) => line.includes('publishes again'))).toMatch(/ {2}refused: STALE_GENERATION$/);
    expect(lines.find((line) => line.includes('reads the report'))).toMatch(
      / {2}OVERWRITTEN by 3 entries, 6\.00$/,
    );
  });

  it('goes on in the next line of a column where a text is too long', () => {
    const lines = play();
    const at = lines.findIndex((line) => line.includes('very many words'));
    const column = lines[at]!.indexOf('does something');
    expect(lines[at + 1]!.slice(0, column).trim()).toBe('');
    expect(`${lines[at]!.slice(column)} ${lines[at + 1]!.slice(column)}`).toBe(
      'does something that takes very many words to say, more than fit into one line',
    );
  });

  it('ends with PASS or FAIL for each claim and a summary', () => {
    expect(play().slice(-4)).toEqual([
      'PASS  the stale write is refused (STALE_GENERATION)',
      "FAIL  the report is B's",
      '',
      '2 claims: 1 passed, 1 failed, fence off, 2.3 s',
    ]);
  });

  it('says first when the fence is off, and has colours only where they are wanted', () => {
    expect(play()[0]).toMatch(/^THE FENCE IS OFF/);
    expect(play().join('')).not.toContain('\u001b');
    expect(play(true).join('')).toContain('\u001b[31mFAIL');
  });
});
