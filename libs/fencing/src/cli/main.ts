#!/usr/bin/env node
import { pathToFileURL } from 'node:url';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { keyMap } from '../index.js';
import { doctor, DOCTOR_USAGE } from './doctor.js';

const USAGE = `usage: nestjs-fencing keys --module <file>...

Prints the @Leased methods and their keys as JSON, of every class that the files load.
  --module, -m   a compiled file, e.g. dist/app.module.js; may be given several times

${DOCTOR_USAGE}`;

/** Answers the exit code: 0, 1 where a file cannot be loaded, 2 where the call is wrong. */
async function main(args: string[]): Promise<number> {
  if (args[0] === 'doctor') return doctor(args.slice(1), print);
  const files = readArguments(args);
  if (!files) {
    console.error(USAGE);
    return 2;
  }
  for (const file of files) {
    try {
      await import(pathToFileURL(path.resolve(file)).href);
    } catch (error) {
      console.error(`${file} could not be loaded: build the application first, and name the compiled file.`);
      console.error(error);
      return 1;
    }
  }
  await print(JSON.stringify(keyMap(), null, 2));
  return 0;
}

function print(text: string): Promise<void> {
  return new Promise((written) => process.stdout.write(`${text}\n`, () => written()));
}

function readArguments(args: string[]): string[] | undefined {
  try {
    const { values, positionals } = parseArgs({
      args,
      allowPositionals: true,
      options: { module: { type: 'string', short: 'm', multiple: true } },
    });
    return positionals.length === 1 && positionals[0] === 'keys' ? values.module : undefined;
  } catch {
    return undefined;
  }
}

// What the application connects to while it is loaded does not keep this process.
void main(process.argv.slice(2)).then((code) => process.exit(code));
