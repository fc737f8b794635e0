"use strict";
// The points of a layout, unpacked from the page; how they lie when turned; and which of them is nearest to a place.
const layoutPoints = (() => {
  const MIDDLE = 2 ** 23;
  const DEPTHS = 256;

  async function unpack(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }

  async function read(spec) {
    const [planes, labels, names] = await Promise.all(
      [spec.positions, spec.labels, spec.names].map(unpack),
    );
    const count = spec.num_points;
    const bytes = new Uint8Array(planes);
    const axes = [];
    for (let axis = 0; axis < spec.dimensions; axis++) {
      const [low, middle, high] = [0, 1, 2].map((i) => bytes.subarray((3 * axis + i) * count));
      const values = new Float32Array(count);
      for (let i = 0; i < count; i++)
        values[i] = ((low[i] | (middle[i] << 8) | (high[i] << 16)) - MIDDLE) / (MIDDLE - 1);
      axes.push(values);
    }
    return new Points(axes, new Int32Array(labels), JSON.parse(new TextDecoder().decode(names)), spec.turn);
  }

  // x lies to the right, y above, z (in three dimensions) towards the reader; `order` is that of drawing.
  class Points {
    constructor(axes, labels, names, turn) {
      Object.assign(this, { axes, labels, names, count: labels.length, solid: axes.length === 3, turned: turn });
      if (this.solid) {
        [this.x, this.y, this.z] = axes.map((axis) => new Float32Array(axis.length));
        this.turn(turn);
      } else {
        [this.x, this.y] = axes;
        this.order = scattered(this.count);
      }
    }

    // Half the width and the height that hold all points; in three dimensions, however they are turned.
    get reach() {
      let [right, up, far] = [0, 0, 0];
      const [a, b, c] = this.axes;
      for (let i = 0; i < this.count; i++) {
        right = Math.max(right, Math.abs(a[i]));
        up = Math.max(up, Math.abs(b[i]));
        if (c) far = Math.max(far, Math.hypot(a[i], b[i], c[i]));
      }
      return c ? [far || 1, far || 1] : [right || 1, up || 1];
    }

    // Look at them along the rows of a rotation, [9]: an orthographic projection.
    turn(rows) {
      const [a, b, c] = this.axes;
      const { x, y, z } = this;
      this.turned = rows;
      for (let i = 0; i < this.count; i++) {
        x[i] = rows[0] * a[i] + rows[1] * b[i] + rows[2] * c[i];
        y[i] = rows[3] * a[i] + rows[4] * b[i] + rows[5] * c[i];
        z[i] = rows[6] * a[i] + rows[7] * b[i] + rows[8] * c[i];
      }
      this.order = sorted(this.count, DEPTHS, (i) => this.depth(i));
    }

    // From 0, behind, to 255, in front.
    depth(i) {
      return Math.min(DEPTHS - 1, Math.max(0, Math.floor((this.z[i] / Math.sqrt(3) + 1) * (DEPTHS / 2))));
    }

    // The point nearest to a place among those within a distance that are accepted; -1 for none.
    nearest(x, y, distance, accepts) {
      let found = -1;
      let least = distance * distance;
      for (let i = 0; i < this.count; i++) {
        const apart = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
        if (apart <= least && accepts(i)) [found, least] = [i, apart];
      }
      return found;
    }
  }

  // 0 to count - 1, sorted by a key below numKeys.
  function sorted(count, numKeys, keyOf) {
    const start = new Uint32Array(numKeys + 1);
    const keys = new Uint32Array(count);
    for (let i = 0; i < count; i++) start[(keys[i] = keyOf(i)) + 1]++;
    for (let key = 0; key < numKeys; key++) start[key + 1] += start[key];
    const next = start.slice();
    const items = new Uint32Array(count);
    for (let i = 0; i < count; i++) items[next[keys[i]]++] = i;
    return items;
  }

  // 0 to count - 1, each far from those before, so that no class lies on top of all others.
  function scattered(count) {
    const gcd = (a, b) => (b ? gcd(b, a % b) : a);
    let step = Math.max(1, Math.round(count * 0.618034));
    while (gcd(step, count) !== 1) step++;
    return Uint32Array.from({ length: count }, (_, i) => (i * step) % count);
  }

  return { read };
})();
