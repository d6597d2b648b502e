// npm run campaign -- [--minutes 2] [--seed 1] [--without fence|activation|guard-lock] [--controls] [--keep FOLDER] [--json FILE]
// The fault campaign of test/campaign: exit code 0 where every check passed. --controls runs it with each part of the fence
// taken out, and passes where the checker notices within a minute. --check FOLDER judges histories that were kept.
import '../test/support/swc-loader.mjs';
import { endServersOnSignals } from './services.mjs';

endServersOnSignals();
const { main } = await import('../test/campaign/cli.js');
process.exit(await main(process.argv.slice(2)));
