"use strict";
// What stands out in the picture of a layout: the classes chosen in its legend, and the names that are searched for.
document.addEventListener("layoutready", () => {
  const map = layoutMap;
  const { points, hidden } = map;
  const element = (name) => document.getElementById(`layout-${name}`);
  const entries = [...document.querySelectorAll("#layout-card .of-class")];
  const labelOf = (entry) => Number(entry.dataset.label);
  const [search, found] = [element("search"), element("found")];
  let lowered = null; // names, once a search needs them
  let matches = [];
  let others = 0; // matches of classes that are hidden
  let at = -1;
  let before = null; // what was chosen before the first click of a double click

  function choose(labels, faint) {
    hidden.clear();
    if (labels.length < entries.length) labels.forEach((label) => hidden.add(label));
    map.faint = faint && hidden.size > 0;
    if (map.held >= 0 && !map.accepts(map.held)) map.hold(-1);
    find();
  }

  function click(entry, event) {
    if (event.shiftKey) return single(labelOf(entry));
    if (event.detail <= 1) before = [[...hidden], map.faint];
    const label = labelOf(entry);
    choose(hidden.has(label) ? [...hidden].filter((one) => one !== label) : [...hidden, label], map.faint);
  }

  // Leave one class in its colour and all others in grey; again, show all.
  function single(label) {
    const rest = entries.map(labelOf).filter((one) => one !== label);
    const alone = map.faint && !hidden.has(label) && hidden.size === rest.length;
    choose(alone ? [] : rest, true);
  }

  function point(label) {
    if (matchMedia("(hover: hover)").matches && map.pointed !== label) {
      map.pointed = label;
      map.change();
    }
  }

  for (const entry of entries) {
    entry.addEventListener("click", (event) => click(entry, event));
    entry.addEventListener("dblclick", () => {
      if (before) choose(...before);
      single(labelOf(entry));
    });
    entry.addEventListener("pointerenter", () => point(hidden.has(labelOf(entry)) ? null : labelOf(entry)));
    entry.addEventListener("pointerleave", () => point(null));
  }
  element("all")?.addEventListener("click", () => choose([], false));

  function paint() {
    const theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
    for (const entry of entries) {
      entry.firstElementChild.style.background = map.spec.colours[theme].at(labelOf(entry));
      entry.setAttribute("aria-pressed", String(!hidden.has(labelOf(entry))));
    }
    if (entries.length) element("all").hidden = !hidden.size;
    document.getElementById("layout-card").classList.toggle("faint", map.faint);
    map.change();
  }

  // Whole names come first, then their beginnings, then what has the letters within.
  function find() {
    const wanted = search.value.trim().toLowerCase();
    map.found = null;
    [matches, others, at] = [[], 0, -1];
    if (wanted) {
      const ranks = [[], [], []];
      map.found = new Uint8Array(points.count);
      lowered ??= points.names.map((name) => name.toLowerCase());
      for (let i = 0; i < points.count; i++) {
        const name = lowered[i];
        const where = name.indexOf(wanted);
        if (where < 0) continue;
        if (hidden.has(points.labels[i])) {
          others++;
          continue;
        }
        map.found[i] = 1;
        ranks[where > 0 ? 2 : name.length > wanted.length ? 1 : 0].push(i);
      }
      matches = ranks.flat();
      if (!matches.length) map.found = null;
    }
    tell(wanted);
    paint();
  }

  function tell(wanted) {
    const more = others ? ` (${others.toLocaleString("en")} hidden)` : "";
    const count = matches.length.toLocaleString("en");
    const all = at >= 0 ? `${(at + 1).toLocaleString("en")} of ${count}` : `${count} ${matches.length === 1 ? "match" : "matches"}`;
    found.textContent = !wanted ? "" : matches.length ? all + more : `No match${more}`;
    element("previous").disabled = element("next").disabled = !matches.length;
  }

  function go(step) {
    if (!matches.length) return;
    at = at < 0 ? (step > 0 ? 0 : matches.length - 1) : (at + step + matches.length) % matches.length;
    const i = matches[at];
    map.look({ x: points.x[i], y: points.y[i], zoom: Math.max(map.view.zoom, 6) });
    map.hold(i);
    tell(true);
    const told = [map.shortened(points.names[i]), map.className(i), found.textContent].filter(Boolean);
    document.getElementById("announce").textContent = told.join(", ");
  }

  search.addEventListener("input", find);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") clear();
    else return;
    event.preventDefault();
  });
  element("next").addEventListener("click", () => go(1));
  element("previous").addEventListener("click", () => go(-1));

  // One thing after the other: the search, what is hidden.
  function clear() {
    if (search.value) {
      search.value = "";
      map.hold(-1);
      find();
    } else if (map.held >= 0) map.hold(-1);
    else choose([], false);
  }
  document.addEventListener("layoutclear", clear);
  new MutationObserver(paint).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  find();
});
