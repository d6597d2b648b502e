import { STYLE } from './style.js';
import { TIMELINE } from './timeline.js';

/** The board's style sheet, and the script that draws its time lines: for pages of yours that should look like it. */
export const boardLook: {
  /** CSS, in light and dark. */
  readonly style: string;
  /** JavaScript: defines `drawTimeline(svg, model)`. */
  readonly timeline: string;
} = Object.freeze({ style: STYLE, timeline: TIMELINE });
