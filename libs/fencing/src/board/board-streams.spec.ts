import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { jest } from '@jest/globals';
import type { Board } from './board.js';
import { BoardStreams } from './board-streams.js';
import { readViewRequest } from './board-view.js';

class Reader extends EventEmitter {
  writableNeedDrain = false;
  readonly sent: string[] = [];
  writeHead = () => undefined;
  write = (text: string) => void this.sent.push(text);
  end = () => this.emit('close');
}

describe('the streams of the board', () => {
  const log = { version: 0 };
  let cost = 0;
  let clock = 0;
  const board = {
    log,
    view: () => {
      clock += cost;
      return { version: log.version };
    },
  } as unknown as Board;
  const open = (streams: BoardStreams) => {
    const reader = new Reader();
    streams.open(reader as unknown as ServerResponse, readViewRequest({}));
    return reader;
  };
  const views = ({ sent }: Reader) => sent.filter((text) => text.startsWith('data: ')).length;

  beforeEach(() => {
    [cost, clock] = [0, 0];
    jest.useFakeTimers({ doNotFake: ['performance'] });
    jest.spyOn(performance, 'now').mockImplementation(() => clock);
  });
  afterEach(() => {
    jest.useRealTimers();
    jest.restoreAllMocks();
  });
  const pass = (ms: number) => {
    for (let passed = 0; passed < ms; passed += 250) {
      clock += 250;
      log.version++;
      jest.advanceTimersByTime(250);
    }
  };

  it('write nothing to a reader that has not read what it got, and go on with the newest when it has', () => {
    const streams = new BoardStreams(board);
    const [slow, quick] = [open(streams), open(streams)];
    slow.writableNeedDrain = true;
    pass(10_000);
    expect([views(slow), views(quick)]).toEqual([1, 41]);
    slow.writableNeedDrain = false;
    pass(250);
    expect(slow.sent.at(-1)).toBe(quick.sent.at(-1));
    expect(views(slow)).toBe(2);
    streams.close();
  });

  it('rest in proportion to what views cost: no more than a twentieth of the process goes into them', () => {
    const streams = new BoardStreams(board);
    const reader = open(streams);
    cost = 100;
    const began = clock;
    pass(60_000);
    expect(views(reader)).toBeGreaterThan(10);
    expect((views(reader) - 1) * cost).toBeLessThanOrEqual((clock - began) / 20 + cost);
    streams.close();
  });

  it('stop their timer with the last reader, and take nobody after the end', () => {
    const streams = new BoardStreams(board);
    const reader = open(streams);
    expect(jest.getTimerCount()).toBe(1);
    reader.emit('close');
    expect([jest.getTimerCount(), streams.size, streams.isFull]).toEqual([0, 0, false]);
    const last = open(streams);
    streams.close();
    expect([last.listenerCount('close'), jest.getTimerCount(), streams.isFull]).toEqual([0, 0, true]);
  });

  it('send a view again after two seconds although nothing was heard, and not before', () => {
    const streams = new BoardStreams(board);
    const reader = open(streams);
    for (let passed = 250; passed <= 1_750; passed += 250) {
      clock += 250;
      jest.advanceTimersByTime(250);
    }
    expect(views(reader)).toBe(1);
    clock += 250;
    jest.advanceTimersByTime(250);
    expect(views(reader)).toBe(2);
    streams.close();
  });
});
