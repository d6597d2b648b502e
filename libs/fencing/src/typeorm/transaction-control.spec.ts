import { controlsTransaction } from './transaction-control.js';

describe('a statement that begins or ends a transaction is seen', () => {
  it.each([
    'COMMIT',
    'commit work;',
    '  Rollback',
    'ROLLBACK AND CHAIN',
    'rollback transaction',
    'END',
    'abort;',
    'BEGIN',
    'begin isolation level serializable',
    'START  TRANSACTION READ ONLY',
    `PREPARE TRANSACTION 'x'`,
    `COMMIT PREPARED 'x'`,
    'SELECT 1; COMMIT',
    'SELECT 1;COMMIT;SELECT 2',
    '/* first */ COMMIT',
    '/* first /* inside */ of it */ COMMIT AND CHAIN',
    '/* a /* b /* c */ d */ e */ COMMIT',
    "/* it's */ COMMIT; SELECT 'x'",
    '/* $a$ */ COMMIT /* $a$ */',
    '/* -- */ COMMIT',
    '-- first\nCOMMIT',
    '-- first\rCOMMIT',
    'SELECT 1 AS a$x$; COMMIT; SELECT 1 AS b$x$',
    `INSERT INTO t VALUES ('a;b'); ROLLBACK`,
    `SELECT 'it''s'; COMMIT`,
    String.raw`SELECT E'it\'s'; COMMIT`,
    `SELECT $$ text $$; COMMIT`,
    `SELECT $a$ $$ $a$; END`,
    'SELECT "a;b"; COMMIT',
  ])('%j', (sql) => {
    expect(controlsTransaction(sql)).toBe(true);
  });
});

describe('a statement that stays inside the transaction is let pass', () => {
  it.each([
    'SELECT 1',
    'SAVEPOINT a',
    'RELEASE SAVEPOINT a',
    'ROLLBACK TO a',
    'ROLLBACK TO SAVEPOINT a',
    'rollback work to savepoint a',
    'ROLLBACK TRANSACTION TO a',
    'SET TRANSACTION ISOLATION LEVEL SERIALIZABLE',
    'PREPARE plan AS SELECT 1',
    'SELECT "end", commit FROM begin',
    `INSERT INTO t VALUES ('; COMMIT')`,
    `INSERT INTO t VALUES ('it''s; COMMIT')`,
    String.raw`INSERT INTO t VALUES (E'it\'s; COMMIT')`,
    'SELECT 1 -- ; COMMIT',
    'SELECT 1 /* ; COMMIT */',
    'SELECT 1 /* /* a */ ; COMMIT */',
    'DO $$ BEGIN PERFORM 1; COMMIT; END $$',
    'CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $f$ BEGIN RETURN 1; END; $f$',
    'SELECT CASE WHEN true THEN 1 END; SELECT 2',
    'UPDATE t SET a = 1 WHERE b = $1 AND c = $2',
  ])('%j', (sql) => {
    expect(controlsTransaction(sql)).toBe(false);
  });
});
