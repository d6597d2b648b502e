// npm run reset: removes the data that `npm start` keeps between runs.
import { existsSync, readdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { dataFolders, serverUsing } from './services.mjs';

for (const folder of Object.values(dataFolders)) {
  if (!existsSync(folder)) continue;
  for (const name of readdirSync(folder)) {
    if (serverUsing(path.join(folder, name)) !== undefined) {
      console.error(`${folder} is in use: end \`npm start\` first.`);
      process.exit(1);
    }
  }
  rmSync(folder, { recursive: true, force: true });
  console.error(`Removed ${folder}`);
}
