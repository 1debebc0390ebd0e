// Replies of Python's `_pack` (perfkit/widgets/timeline.py): boxes as typed arrays.

const COLUMNS = [
  ["start", Float32Array],
  ["dur", Float32Array],
  ["event", Uint32Array],
  ["count", Uint32Array],
  ["name", Uint16Array],
  ["row", Uint16Array],
  ["kind", Uint8Array],
  ["fill", Uint8Array],
];

export function unpack(header, view) {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength).slice();
  const boxes = {
    n: header.n,
    origin: header.start,
    from: header.start,
    to: header.end,
    pixel: header.pixel,
    names: header.names,
  };
  let at = 0;
  for (const [name, Type] of COLUMNS) {
    boxes[name] = new Type(bytes.buffer, at, header.n);
    at += header.n * Type.BYTES_PER_ELEMENT;
  }
  // rows are sorted: the start of each
  boxes.first = new Map();
  for (let i = 0; i < boxes.n; i++) if (!boxes.first.has(boxes.row[i])) boxes.first.set(boxes.row[i], i);
  return boxes;
}

/** The box in a row at a time, within `slack` µs; -1 if there is none. */
export function boxAt(boxes, row, time, slack) {
  const t = time - boxes.origin;
  let best = -1;
  let distance = Infinity;
  for (let i = boxes.first.get(row) ?? boxes.n; i < boxes.n && boxes.row[i] === row; i++) {
    if (boxes.start[i] > t + slack) break;
    const away = Math.max(boxes.start[i] - t, t - boxes.start[i] - boxes.dur[i], 0);
    if (away <= slack && away <= distance) {
      best = i;
      distance = away;
    }
  }
  return best;
}
