// A bounded curve: rows of numbers, the newest in full, older ones folded.
//
// Folding keeps extremes: four neighbouring rows become two, the lowest and the highest
// of each column, so a slow step never disappears from the picture. perfkit/widgets/_history.py
// does the same in the kernel; keep the two in step.

export const CAPACITY = 4000;

export class Points {
  /** @param {number} width columns, x first */
  constructor(width) {
    this.columns = Array.from({ length: width }, () => []);
    this.total = 0; // rows ever seen, folded ones included
    this.folded = false;
  }

  /** Restore what the kernel kept: {total, rows, folded, data: planar float32}. */
  restore({ total, rows, folded, data }) {
    this.columns = planar(floats(data), rows, this.columns.length);
    this.total = total;
    this.folded = folded;
  }

  /** Add rows; `first` is the number of rows before them, so a row received twice counts once. */
  append(first, rows, data) {
    const fresh = planar(floats(data), rows, this.columns.length);
    const known = Math.max(0, Math.min(rows, this.total - first));
    if (known === rows) return false;
    this.columns.forEach((column, i) => {
      for (let k = known; k < rows; k++) column.push(fresh[i][k]);
    });
    this.total = first + rows;
    while (this.columns[0].length > CAPACITY) this.fold();
    return true;
  }

  fold() {
    const half = (CAPACITY >> 3) << 2; // the older half, in whole groups of four
    const [x, ...rest] = this.columns;
    const foldedX = [];
    for (let k = 0; k < half; k += 4) foldedX.push(x[k], x[k + 2]);
    const folded = rest.map((column) => {
      const out = [];
      for (let k = 0; k < half; k += 4) {
        const group = column.slice(k, k + 4).filter((v) => v !== null);
        out.push(group.length ? Math.min(...group) : null);
        out.push(group.length ? Math.max(...group) : null);
      }
      return out;
    });
    this.columns = [foldedX, ...folded].map((head, i) => head.concat(this.columns[i].slice(half)));
    this.folded = true;
  }

  get rows() {
    return this.columns[0].length;
  }

  latest(column) {
    return this.columns[column][this.rows - 1] ?? null;
  }
}

function floats(view) {
  // the buffer may start at an offset that Float32Array does not accept
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

function planar(values, rows, width) {
  return Array.from({ length: width }, (_, i) =>
    Array.from(values.subarray(i * rows, (i + 1) * rows), (v) => (Number.isNaN(v) ? null : v)),
  );
}

/** n, last, median, lowest and highest of a column; null if it is empty. */
export function summary(column) {
  const values = column.filter((v) => v !== null);
  if (!values.length) return null;
  const last = values[values.length - 1];
  values.sort((a, b) => a - b);
  const middle = values.length >> 1;
  const median = values.length % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return { n: values.length, last, median, low: values[0], high: values[values.length - 1] };
}
