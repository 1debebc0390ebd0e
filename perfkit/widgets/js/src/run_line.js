// The line beside the title while a loop runs: what perfkit/show/progress_line.py says in Python,
// from the same facts. A message of numbers is a third of the kernel's work of one with the words.

import { fmtBytes, fmtCount, fmtNumber, fmtShare, fmtUs } from "./numbers.js";

const LONGEST_S = 3.6e6;

/** What the widget's `status` is, of the facts of one update. */
export function runLine([epoch, done, total, stepMs, waitShare, samplesPerS, bytes, kind, elapsedS]) {
  const facts = [`step ${fmtCount(done)}${total === null ? "" : `/${fmtCount(total)}`}`];
  if (epoch > 1) facts.unshift(`epoch ${epoch}`);
  if (stepMs) facts.push(`${fmtUs(1e3 * stepMs)} a step`);
  if (waitShare !== null) facts.push(`data wait ${fmtShare(waitShare)}`);
  if (samplesPerS) facts.push(`${fmtNumber(samplesPerS)} samples/s`);
  facts.push(`${fmtBytes(bytes)} ${kind}`, clock(done, total, elapsedS));
  return {
    text: facts.join(" · "),
    progress: total ? Math.min(done / total, 1) : null,
    state: "running",
  };
}

function clock(done, total, elapsedS) {
  const passed = fmtSeconds(elapsedS);
  if (!total || done <= 0 || done > total) return passed;
  const leftS = (elapsedS / done) * (total - done);
  return leftS < LONGEST_S ? `${passed} < ${fmtSeconds(leftS)}` : passed;
}

function fmtSeconds(durationS) {
  const two = (n) => String(n).padStart(2, "0");
  const all = Math.round(durationS);
  const [hours, minutes, seconds] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  return hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${two(minutes)}:${two(seconds)}`;
}
