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
  const { files = [], help } = readArguments(args);
  if (help) {
    await print(USAGE);
    return 0;
  }
  if (files.length === 0) {
    console.error(USAGE);
    return 2;
  }
  for (const file of files) {
    try {
      await import(pathToFileURL(path.resolve(file)).href);
    } catch (error) {
      console.error(
        `${file} could not be loaded. Name a compiled file, and set the variables that it reads.`,
      );
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

function readArguments(args: string[]): { files?: string[]; help?: boolean } {
  try {
    const { values, positionals } = parseArgs({
      args,
      allowPositionals: true,
      options: {
        module: { type: 'string', short: 'm', multiple: true },
        help: { type: 'boolean', short: 'h' },
      },
    });
    if (values.help) return { help: true };
    return positionals.length === 1 && positionals[0] === 'keys' ? { files: values.module } : {};
  } catch (error) {
    console.error(`${(error as Error).message}\n`);
    return {};
  }
}

// What the application connects to while it is loaded does not keep this process.
void main(process.argv.slice(2)).then((code) => process.exit(code));
