// Lets plain Node run TypeScript as Jest does: `node --import <this file> some.ts`. For worker processes of tests.
import { register } from 'node:module';

register('./swc-loader-hooks.mjs', import.meta.url);
