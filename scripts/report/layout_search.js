"use strict";
// Searches the names of a layout's points: marks all that have the letters within, and Enter goes from one to the next.
(() => {
  const chart = report.spec.charts.find(({ data }) => data.at(-1).meta.role === "found");
  const field = document.getElementById("layout-search");
  let [matches, at] = [[], -1];
  const axes = chart.data[0].z ? ["x", "y", "z"] : ["x", "y"];
  const unpack = ({ bdata }) => new Float32Array(Uint8Array.from(atob(bdata), (c) => c.charCodeAt(0)).buffer);
  const points = chart.data.slice(0, -1).flatMap((trace) => {
    const values = axes.map((axis) => unpack(trace[axis]));
    return trace.text.map((name, i) => ({ name, plain: name.toLowerCase(), place: values.map((v) => v[i]) }));
  });

  // The shortest names come first: the one that was typed as a whole, if there is one.
  function find() {
    const escaped = Object.assign(document.createElement("i"), { textContent: field.value.trim().toLowerCase() });
    const wanted = escaped.innerHTML;
    matches = wanted ? points.filter(({ plain }) => plain.includes(wanted)) : [];
    matches.sort((a, b) => a.name.length - b.name.length);
    at = -1;
    show();
  }

  function show() {
    const shown = at < 0 ? matches : [matches[at]];
    const mark = chart.data.at(-1);
    axes.forEach((axis, i) => (mark[axis] = shown.map(({ place }) => place[i])));
    mark.text = at < 0 ? [] : [matches[at].name];
    const count = `${matches.length.toLocaleString("en")} found`;
    document.getElementById("layout-found").textContent = !field.value.trim() ? "" : at < 0 ? count : `${at + 1} of ${count}`;
    if (at >= 0 && axes.length === 2) {
      const [x, y] = matches[at].place;
      report.state.ranges[chart.id] = { xaxis: [x - 0.2, x + 0.2], yaxis: [y - 0.2, y + 0.2] };
    }
    report.draw(chart);
  }

  field.addEventListener("input", find);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") field.value = "";
    else if (event.key !== "Enter" || !matches.length) return;
    event.preventDefault();
    if (event.key === "Escape") return find();
    at = (at + (event.shiftKey ? matches.length - 1 : 1)) % matches.length;
    show();
  });
})();
