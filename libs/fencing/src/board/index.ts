export { FencingBoardModule } from './fencing-board.module.js';
export type { BoardGuard, FencingBoardOptions } from './board-options.js';
export { boardLook } from './page/look.js';
