import 'reflect-metadata';
import { Inject, Injectable } from '@nestjs/common';
import { gate, tell, told } from './worker-side.js';

// A worker for workers.spec.ts.

class Dependency {}

@Injectable()
class Decorated {
  constructor(
    readonly dependency: Dependency,
    @Inject('token') readonly token: unknown,
  ) {}
}

const [mode] = process.argv.slice(2);
console.error(`running as ${mode}`);

switch (mode) {
  case 'echo': {
    const types = Reflect.getMetadata('design:paramtypes', Decorated) as (new () => unknown)[];
    await tell(
      'metadata',
      types.map((type) => type.name),
    );
    await tell('environment', process.env.FROM_TEST);
    await tell('echo', await told('question'));
    break;
  }
  case 'gate':
    await gate('the gate');
    await tell('through');
    break;
  case 'count':
    for (let count = 1; ; count++) {
      await tell('count', count);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  case 'throw':
    throw new Error('broken on purpose');
}
