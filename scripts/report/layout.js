"use strict";
// The picture of a layout: what is looked at, which classes and matches stand out, and drawing it again when that changes.
const layoutMap = (() => {
  const [NOT, FAINT, SHOWN, FOUND] = [0, 1, 2, 3];
  const MOST = 4000; // times the whole; there a position's 24 bits come to an end
  const PRINTED = { width: 640, height: 600, ratio: 4 }; // of a screen
  const LEVELS = 16; // of fading with depth
  const spec = JSON.parse(document.getElementById("layout-data").textContent);
  const picture = document.getElementById("layout-picture");
  const ring = document.getElementById("layout-ring");
  const tip = document.getElementById("layout-tip");
  const raster = new layoutRaster.Raster(document.getElementById("layout-canvas"));
  const kept = report.state.layout || {};
  const map = {
    points: null,
    view: kept.view || { x: 0, y: 0, zoom: 1 },
    hidden: new Set(kept.hidden || []), // labels
    faint: Boolean(kept.faint), // whether what is hidden is still seen, in grey
    pointed: null, // the label that the pointer is on in the legend
    found: null, // 1 for each point that is searched for; null without a search
    held: -1, // the point whose name is shown
    printing: false,
    milliseconds: [], // of the last frames
  };
  let reach = [1, 1];
  let asked = 0;

  const size = () =>
    map.printing
      ? PRINTED
      : {
          width: Math.max(1, picture.clientWidth),
          height: Math.max(1, picture.clientHeight),
          ratio: Math.min(devicePixelRatio || 1, 4),
        };
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const fit = ({ width, height }) => 0.95 * Math.min(width / 2 / reach[0], height / 2 / reach[1]);
  const scale = (frame = size()) => map.view.zoom * fit(frame);

  const isShown = (label) => !map.hidden.has(label) && (map.pointed === null || map.pointed === label);
  const accepts = (i) => isShown(map.points.labels[i]);

  // Where a point lies in the picture, in CSS pixels.
  function place(i, frame = size()) {
    const k = scale(frame);
    const { x, y } = map.points;
    return [(x[i] - map.view.x) * k + frame.width / 2, frame.height / 2 - (y[i] - map.view.y) * k];
  }

  // What lies at a place of the picture.
  function spot(left, top, frame = size()) {
    const k = scale(frame);
    return [(left - frame.width / 2) / k + map.view.x, (frame.height / 2 - top) / k + map.view.y];
  }

  function look(view) {
    Object.assign(map.view, view);
    map.view.zoom = clamp(map.view.zoom, 1, MOST);
    // What is in the middle stays within the points; the whole stays in the middle.
    const share = Math.min(1, 2 - 2 / map.view.zoom);
    for (const [axis, far] of [["x", reach[0]], ["y", reach[1]]])
      map.view[axis] = clamp(map.view[axis], -far * share, far * share);
    picture.style.touchAction = map.view.zoom > 1 ? "none" : "pan-y";
    document.getElementById("layout-out").disabled = map.view.zoom <= 1;
    change();
  }

  function zoom(factor, left = picture.clientWidth / 2, top = picture.clientHeight / 2) {
    const [x, y] = spot(left, top);
    map.view.zoom = clamp(map.view.zoom * factor, 1, MOST);
    const [newX, newY] = spot(left, top);
    look({ x: map.view.x + x - newX, y: map.view.y + y - newY });
  }

  const whole = () => look({ x: 0, y: 0, zoom: 1 });

  // Turn by angles about the picture's upright and level axes.
  function turn(aside, up) {
    const [r, [c, s], [d, t]] = [map.points.turned, ...[aside, up].map((a) => [Math.cos(a), Math.sin(a)])];
    const columns = [0, 1, 2].map((j) => {
      const [x, y, z] = [r[j], r[3 + j], r[6 + j]];
      const [x1, z1] = [c * x + s * z, c * z - s * x];
      return [x1, d * y - t * z1, t * y + d * z1];
    });
    map.points.turn([0, 1, 2].flatMap((i) => columns.map((column) => column[i])));
    change();
  }

  function change() {
    report.state.layout = { view: map.view, hidden: [...map.hidden], faint: map.faint };
    if (map.points?.solid) report.state.layout.turned = map.points.turned;
    if (!asked) asked = requestAnimationFrame(() => draw());
  }

  const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const [paper, ink] = ["--card", "--ink"].map((name) => long(style.getPropertyValue(name).trim()));
    const theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
    const mix = (from, to, share) => from.map((value, i) => Math.round(value + (to[i] - value) * share));
    // In three dimensions the farther colours are nearer to the paper's.
    const fading = (colour) =>
      Array.from({ length: LEVELS }, (_, level) =>
        layoutRaster.pack(mix(channels(colour), paper, map.points.solid ? 0.6 * (1 - level / (LEVELS - 1)) : 0)),
      );
    const colours = spec.colours[theme].map(fading);
    return { paper, ink: layoutRaster.pack(ink), colours, grey: colours.at(-1) };
  }

  const long = (colour) => channels(colour.length === 4 ? colour.replace(/[^#]/g, "$&$&") : colour);

  // The radius of points in CSS pixels and how opaque they are: the more of them there are and the closer they lie, the
  // less; nearer by, the more.
  function brushes(frame) {
    const even = Math.sqrt((0.22 * frame.width * frame.height) / (Math.PI * map.points.count));
    const radius = clamp(clamp(even, 0.8, 4.5) * map.view.zoom ** 0.35, 0.8, 5.5);
    const covered = ((spec.crowding - 1) * Math.PI * (radius + 0.4) ** 2) / (scale(frame) / 100) ** 2;
    return { radius, opacity: clamp((covered || 1) ** -0.3, 0.35, 0.92) };
  }

  function draw() {
    cancelAnimationFrame(asked);
    asked = 0;
    if (!map.points) return;
    const began = performance.now();
    const frame = size();
    const { ratio } = frame;
    const { paper, ink, colours, grey } = palette();
    const { radius, opacity } = brushes(frame);
    const wide = Math.max(radius * 1.5, 3);
    raster.begin(Math.round(frame.width * ratio), Math.round(frame.height * ratio), (wide + 2) * ratio, paper);
    const looks = lookOf();
    const brush = raster.brush(radius * ratio, opacity);
    const few = raster.brush(radius * ratio, map.found ? 0.2 * opacity : 0.16);
    // All classes are matched to the last colour if they have none.
    const own = (i, from = colours) => from[map.points.labels[i] < 0 ? from.length - 1 : map.points.labels[i]];
    each(looks, FAINT, few, (i) => (map.found && isShown(map.points.labels[i]) ? own(i) : grey));
    each(looks, SHOWN, brush, own);
    if (map.found) {
      const dark = Array(LEVELS).fill(ink);
      each(looks, FOUND, raster.brush((wide + 1.2) * ratio, 1), () => dark);
      each(looks, FOUND, raster.brush(wide * ratio, 1), own);
    }
    raster.end();
    showName();
    map.milliseconds = [...map.milliseconds.slice(-99), performance.now() - began];
  }

  // How each point is drawn.
  function lookOf() {
    const { labels, count } = map.points;
    const looks = new Uint8Array(count);
    const ofLabel = [-1, ...spec.classes.keys()].map((label) =>
      isShown(label) ? SHOWN : map.faint || map.pointed !== null ? FAINT : NOT,
    );
    for (let i = 0; i < count; i++) {
      const own = ofLabel[labels[i] + 1];
      looks[i] = map.found && own === SHOWN ? (map.found[i] ? FOUND : FAINT) : own;
    }
    return looks;
  }

  function each(looks, chosen, brush, colourOf) {
    const { order, x, y, solid, count } = map.points;
    const frame = size();
    const k = scale(frame) * frame.ratio;
    const left = (frame.width * frame.ratio) / 2 - map.view.x * k;
    const top = (frame.height * frame.ratio) / 2 + map.view.y * k;
    for (let at = 0; at < count; at++) {
      const i = order[at];
      if (looks[i] !== chosen) continue;
      const level = solid ? map.points.depth(i) >> 4 : 0;
      raster.disc(x[i] * k + left, top - y[i] * k, brush, colourOf(i)[level]);
    }
  }

  // Show the name of a point beside it; of none for -1.
  function hold(i) {
    if (i === map.held) return;
    map.held = i;
    showName();
  }

  function showName() {
    const i = map.held;
    ring.hidden = tip.hidden = i < 0 || map.printing;
    if (i < 0 || map.printing) return;
    const [left, top] = place(i);
    const { clientWidth: width, clientHeight: height } = picture;
    ring.hidden = tip.hidden = left < 0 || top < 0 || left > width || top > height;
    const name = map.points.names[i];
    tip.children[0].textContent = shortened(name);
    tip.children[1].textContent = className(i);
    ring.style.translate = `${left}px ${top}px`;
    const aside = left + 14 + tip.offsetWidth > width ? left - 14 - tip.offsetWidth : left + 14;
    const below = top + 14 + tip.offsetHeight > height ? top - 14 - tip.offsetHeight : top + 14;
    const within = (value, free) => `${clamp(value, 4, Math.max(4, free - 4))}px`;
    tip.style.translate = `${within(aside, width - tip.offsetWidth)} ${within(below, height - tip.offsetHeight)}`;
  }

  function shortened(name) {
    return name.length > 300 ? `${[...name].slice(0, 300).join("")}\u2026` : name;
  }

  function className(i) {
    const label = map.points.labels[i];
    return label >= 0 ? spec.classes[label] : spec.classes.length ? "no class" : "";
  }

  // The shown point nearest to a place of the picture, if one is near.
  function near(left, top, pixels = 9) {
    return map.points.nearest(...spot(left, top), pixels / scale(), accepts);
  }

  const print = (printing) => () => {
    map.printing = printing;
    draw();
  };

  async function start() {
    try {
      map.points = await layoutPoints.read(spec);
    } catch (error) {
      picture.textContent = `This browser cannot unpack the points (${error}). Use a newer browser.`;
      return;
    }
    if (map.points.solid && kept.turned) map.points.turn(kept.turned);
    reach = map.points.reach;
    new ResizeObserver(change).observe(picture);
    new MutationObserver(change).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    addEventListener("resize", change);
    addEventListener("beforeprint", print(true));
    addEventListener("afterprint", print(false));
    look({});
    document.getElementById("layout-card").dataset.ready = "yes";
    document.dispatchEvent(new Event("layoutready"));
  }

  // Once the scripts that follow have begun to listen.
  setTimeout(start);
  const moves = { look, zoom, whole, turn, change, hold };
  return Object.assign(map, { spec, picture, ...moves, place, spot, near, accepts, shortened, className });
})();
