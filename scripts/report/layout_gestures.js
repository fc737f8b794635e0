"use strict";
// What moves the picture of a layout: the wheel, the mouse, fingers and the keyboard.
document.addEventListener("layoutready", () => {
  const { picture, view, look, zoom, whole, turn, hold, near, points, spot } = layoutMap;
  const PAUSE = 400; // milliseconds without a wheel after which another turn of it is another wish
  const down = new Map(); // pointers that are pressed, and where
  let scrolled = -PAUSE;
  let zoomed = -PAUSE;
  const turning = () => document.getElementById("layout-turn")?.getAttribute("aria-pressed") === "true";
  const inside = (event) => {
    const box = picture.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  // Who scrolls the page past the picture does not want to zoom, nor to scroll when zooming out has come to its end.
  addEventListener("wheel", (event) => picture.contains(event.target) || (scrolled = event.timeStamp), {
    passive: true,
    capture: true,
  });
  picture.addEventListener(
    "wheel",
    (event) => {
      const lines = event.deltaY * [1, 16, 400][event.deltaMode];
      if (!event.ctrlKey && event.timeStamp - scrolled < PAUSE) {
        scrolled = event.timeStamp;
        return;
      }
      if (!event.ctrlKey && lines > 0 && view.zoom <= 1 && event.timeStamp - zoomed > PAUSE) {
        scrolled = event.timeStamp;
        return;
      }
      zoomed = event.timeStamp;
      event.preventDefault();
      const rate = event.ctrlKey ? 0.01 : 0.002; // a pinch on a touchpad comes as a small turn of the wheel with Ctrl
      zoom(Math.exp(-Math.max(-400, Math.min(400, lines)) * rate), ...inside(event));
    },
    { passive: false },
  );

  picture.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    picture.setPointerCapture(event.pointerId);
    down.set(event.pointerId, inside(event));
    if (event.pointerType !== "mouse") hold(near(...inside(event), 18));
  });
  picture.addEventListener("pointermove", (event) => {
    const to = inside(event);
    const from = down.get(event.pointerId);
    if (!from) return down.size ? undefined : hold(near(...to));
    picture.classList.add("moving");
    const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    if (other) pinch(from, to, other);
    else if (points.solid && (event.shiftKey || turning())) turn((to[0] - from[0]) / 150, (to[1] - from[1]) / 150);
    else drag(from, to);
    down.set(event.pointerId, to);
  });
  for (const kind of ["pointerup", "pointercancel", "lostpointercapture"])
    picture.addEventListener(kind, (event) => {
      down.delete(event.pointerId);
      picture.classList.toggle("moving", down.size > 0);
    });
  picture.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && !down.size && hold(-1));
  picture.addEventListener("dblclick", whole);

  function drag(from, to) {
    const [[x, y], [newX, newY]] = [spot(...from), spot(...to)];
    look({ x: view.x + x - newX, y: view.y + y - newY });
  }

  function pinch(from, to, other) {
    const apart = ([x, y]) => Math.max(10, Math.hypot(x - other[0], y - other[1]));
    const middle = ([x, y]) => [(x + other[0]) / 2, (y + other[1]) / 2];
    zoom(apart(to) / apart(from), ...middle(from));
    drag(middle(from), middle(to));
  }

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  picture.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const step = STEPS[event.key];
    if (step && event.shiftKey && points.solid) turn(step[0] / 10, -step[1] / 10);
    else if (step) look({ x: view.x + (step[0] * 0.25) / view.zoom, y: view.y + (step[1] * 0.25) / view.zoom });
    else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-" || event.key === "_") zoom(1 / 1.5);
    else if (event.key === "0" || event.key === "Home") whole();
    else if (event.key === "Escape") document.dispatchEvent(new Event("layoutclear"));
    else return;
    event.preventDefault();
  });
  document.getElementById("layout-in").addEventListener("click", () => zoom(1.5));
  document.getElementById("layout-out").addEventListener("click", () => zoom(1 / 1.5));
  document.getElementById("layout-whole").addEventListener("click", whole);
  document.getElementById("layout-turn")?.addEventListener("click", (event) =>
    event.currentTarget.setAttribute("aria-pressed", String(!turning())),
  );
});
