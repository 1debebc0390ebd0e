// Where the rows of the lanes are: lanes fold, and everything scrolls.

export const RULER = 24;
export const HEAD = 19;
export const ROW = 17;
const GAP = 6;
const FOLDED = 8; // rows of a folded lane: ops and kernels nest less deeply than Python functions

export function createLanes(lanes) {
  const open = new Set();
  let places = [];
  let height = 0;
  const rowLane = [];
  lanes.forEach((lane, i) => {
    for (let r = 0; r < lane.rows; r++) rowLane[lane.first + r] = i;
  });

  const layout = () => {
    let y = 0;
    places = lanes.map((lane, i) => {
      const rows = open.has(i) ? lane.rows : Math.min(lane.rows, FOLDED);
      const place = { ...lane, index: i, y, shown: rows, hidden: lane.rows - rows };
      y += HEAD + rows * ROW + GAP;
      return place;
    });
    height = y;
  };
  layout();

  return {
    get places() {
      return places;
    },
    get height() {
      return height;
    },
    count: lanes.length,
    /** Top of a row before scrolling; if it is folded away, of its lane's last visible row. */
    rowY(row) {
      const place = places[rowLane[row]];
      if (!place) return 0;
      return place.y + HEAD + Math.min(row - place.first, place.shown - 1) * ROW;
    },
    isShown(row) {
      const place = places[rowLane[row]];
      return place !== undefined && row - place.first < place.shown;
    },
    /** What is at a height: {lane, row}; row is -1 on a lane's header. */
    at(y) {
      const place = places.find((one) => y >= one.y && y < one.y + HEAD + one.shown * ROW);
      if (!place) return null;
      const row = Math.floor((y - place.y - HEAD) / ROW);
      return { lane: place.index, row: row < 0 ? -1 : place.first + row };
    },
    /** Rows that are visible between two heights. */
    rowsBetween(top, bottom) {
      const rows = [];
      for (const place of places) {
        for (let r = 0; r < place.shown; r++) {
          const y = place.y + HEAD + r * ROW;
          if (y + ROW > top && y < bottom) rows.push(place.first + r);
        }
      }
      return rows;
    },
    canFold: (index) => lanes[index].rows > FOLDED,
    toggle(index) {
      if (open.has(index)) open.delete(index);
      else open.add(index);
      layout();
    },
    reveal(row) {
      const index = rowLane[row];
      if (index === undefined || this.isShown(row)) return;
      open.add(index);
      layout();
    },
    isOpen: (index) => open.has(index),
    laneOf: (row) => rowLane[row],
  };
}
