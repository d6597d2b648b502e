export {
  type FencingInstrumentation,
  type FencingInstrumentationOptions,
  instrumentFencing,
} from './instrument-fencing.js';
