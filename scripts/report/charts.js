"use strict";
// Draws the charts of the page, each from its data and from what the reader has chosen, again whenever that changes.
const report = (() => {
  const root = document.documentElement;
  const spec = JSON.parse(document.getElementById("charts").textContent);
  const media = matchMedia("(prefers-color-scheme: dark)");
  const NEAR = { epochs: "after %{x} epochs", step: "after %{x} steps", wall_seconds: "after %{x} s" };

  // What the reader has chosen. A live page keeps it when it loads itself again.
  const state = Object.assign(
    { axis: "epochs", log: false, hidden: {}, seeds: {}, ranges: {}, sorted: {}, printing: false },
    remembered(),
  );

  // Use the storage of the browser, which may have none.
  function stored(use) {
    try {
      return use();
    } catch {
      return null;
    }
  }

  function remembered() {
    const kept = stored(() => JSON.parse(sessionStorage.getItem(`report ${location.pathname}`)));
    stored(() => sessionStorage.removeItem(`report ${location.pathname}`));
    return kept;
  }

  function theme() {
    if (state.printing) return "light";
    return stored(() => localStorage.getItem("report theme")) || (media.matches ? "dark" : "light");
  }

  // A block is what a legend is for: charts of the same curves, or a card by itself.
  const around = (element) => element.closest(".block") || element.closest(".card");
  const blockOf = (chart) => around(document.getElementById(chart.id));
  const blockName = (block) => `${[...document.querySelectorAll(".block, .card")].indexOf(block)}`;
  const isMap = (chart) => chart.data.at(-1).meta.role === "found";
  const isCurve = (chart) => chart.data.some((trace) => trace.meta.x);
  const hiddenIn = (block) => state.hidden[blockName(block)] || [];
  const seedsIn = (block) => state.seeds[blockName(block)] || [];

  function paint(trace, colours, block) {
    const { role, key, colour, dashed, x } = trace.meta;
    const own = colours.c[colour];
    const xs = x && spec.xs[x][state.axis];
    const out = { ...trace, visible: !hiddenIn(block).includes(key), showlegend: false };
    if (xs) out.x = xs;
    if (role === "mean") out.line = { color: own, width: 2, dash: dashed ? "dash" : "solid" };
    if (role === "mean") out.marker = { color: own, size: 6 };
    if (role === "seed")
      Object.assign(out, {
        line: { color: own, width: 1, dash: dashed ? "dash" : "solid" },
        marker: { color: own, size: 4 },
        opacity: 0.6,
        visible: out.visible && seedsIn(block).includes(key),
      });
    if (role === "best")
      out.marker = { color: colours.card, size: 7, symbol: "circle", line: { color: own, width: 1.8 } };
    if (role === "bar") out.marker = { color: own };
    if (role === "area") Object.assign(out, { line: { width: 0.5, color: own }, fillcolor: faint(own, 0.75) });
    if (role === "point")
      Object.assign(out, {
        marker: { ...trace.marker, color: trace.meta.colours[theme() === "dark" ? 1 : 0] },
        showlegend: true,
      });
    if (role === "found") {
      out.marker = { ...trace.marker, color: colours.ink, line: { ...trace.marker.line, color: colours.ink } };
      out.textfont = { color: colours.ink, size: 14 };
    }
    if (role === "band")
      Object.assign(out, polygon(xs, trace.meta), {
        fill: "toself",
        fillcolor: faint(own, 0.16),
        line: { width: 0 },
      });
    return out;
  }

  function polygon(xs, { low, high }) {
    const whole = xs.map((_, i) => i).filter((i) => xs[i] !== null && low[i] !== null);
    const back = [...whole].reverse();
    return {
      x: [...whole, ...back].map((i) => xs[i]),
      y: [...whole.map((i) => high[i]), ...back.map((i) => low[i])],
    };
  }

  function faint(hex, alpha) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},${alpha})`;
  }

  function currentColours() {
    const style = getComputedStyle(root);
    const get = (name) => style.getPropertyValue(`--${name}`).trim();
    return {
      ink: get("ink"),
      muted: get("muted"),
      grid: get("grid"),
      line: get("line"),
      card: get("card"),
      accent: get("accent"),
      c: [0, 1, 2, 3, 4, 5, 6].map((i) => get(`c${i}`)),
    };
  }

  function layoutOf(chart, colours) {
    const axis = {
      gridcolor: colours.grid,
      linecolor: colours.line,
      zeroline: false,
      ticks: "",
      title: { font: { size: 12, color: colours.muted }, standoff: 10 },
      tickfont: { size: 11.5, color: colours.muted },
      automargin: true,
      spikethickness: 1,
      spikedash: "dot",
      spikecolor: colours.muted,
    };
    const given = chart.layout;
    const saved = state.ranges[chart.id] || {};
    const merge = (own) => ({ ...axis, ...own, title: { ...axis.title, ...(own || {}).title } });
    const layout = {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colours.ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 12, r: 14, t: 30, b: 10 },
      hovermode: "x unified",
      hoverlabel: { bgcolor: colours.card, bordercolor: colours.line, font: { color: colours.ink, size: 12 } },
      barcornerradius: 2,
      dragmode: given.scene ? "orbit" : matchMedia("(pointer: coarse)").matches ? false : isMap(chart) ? "pan" : "zoom",
      modebar: { color: colours.muted, activecolor: colours.accent, bgcolor: "rgba(0,0,0,0)" },
      ...given,
      xaxis: merge(given.xaxis),
      yaxis: merge(given.yaxis),
    };
    layout.xaxis.showgrid = Boolean(given.xaxis && given.hovermode === "y unified");
    if (isCurve(chart)) {
      Object.assign(layout.xaxis, {
        title: { ...layout.xaxis.title, text: spec.axes[state.axis] },
        type: state.log ? "log" : "linear",
        unifiedhovertitle: { text: NEAR[state.axis] },
        hoverformat: ",.4~g",
        rangemode: state.log ? "normal" : "tozero",
        dtick: state.log ? "D2" : undefined,
        exponentformat: "none",
        separatethousands: true,
      });
      if (chart.data.filter((trace) => trace.meta.role === "mean").length > 7) layout.hovermode = "closest";
    }
    for (const name of ["xaxis", "yaxis"])
      if (saved[name]) Object.assign(layout[name], { range: saved[name], autorange: false });
    layout.shapes = (given.shapes || []).map((shape) => ({
      ...shape,
      line: { ...shape.line, color: colours.muted },
    }));
    layout.annotations = [];
    for (const mark of chart.marks) {
      const at = mark.x[state.axis];
      if (at === null || (state.log && at <= 0)) continue;
      layout.shapes.push({
        type: "line",
        x0: at,
        x1: at,
        yref: "paper",
        y0: 0,
        y1: 1,
        line: { color: colours.muted, width: 1, dash: "dot" },
      });
      const end = Math.max(...chart.data.flatMap((trace) => spec.xs[trace.meta.x][state.axis]));
      layout.annotations.push({
        x: state.log ? Math.log10(at) : at,
        yref: "paper",
        y: 0.02,
        yanchor: "bottom",
        xanchor: at < 0.2 * end ? "left" : at > 0.8 * end ? "right" : "center",
        xshift: at < 0.2 * end ? 4 : at > 0.8 * end ? -4 : 0,
        bgcolor: colours.card,
        text: mark.text,
        showarrow: false,
        font: { size: 11.5, color: colours.muted },
      });
    }
    if (isMap(chart) && innerWidth < 700) layout.legend = { ...given.legend, orientation: "h" };
    if (given.height) document.getElementById(chart.id).style.height = `${given.height}px`;
    if (state.printing)
      Object.assign(layout, {
        width: document.getElementById(chart.id).closest(".charts") ? 318 : 660,
        height: given.height || 230,
      });
    return layout;
  }

  function draw(chart) {
    const place = document.getElementById(chart.id);
    const colours = currentColours();
    const block = blockOf(chart);
    const config = {
      responsive: true,
      displaylogo: false,
      scrollZoom: isMap(chart),
      modeBarButtons: [
        chart.layout.scene
          ? ["toImage", "orbitRotation", "pan3d", "zoom3d", "resetCameraDefault3d"]
          : ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"],
      ],
      displayModeBar: true,
      toImageButtonOptions: { format: "png", scale: 3, filename: `${document.title} ${chart.id}` },
    };
    Plotly.react(
      place,
      chart.data.map((trace) => paint(trace, colours, block)),
      layoutOf(chart, colours),
      config,
    );
    if (!place.dataset.watched) {
      place.dataset.watched = "yes";
      place.on("plotly_relayout", (change) => remember(chart, place, change));
    }
  }

  function remember(chart, place, change) {
    if (!Object.keys(change).some((key) => /axis/.test(key))) return;
    const kept = {};
    for (const name of ["xaxis", "yaxis"])
      if (!place.layout[name].autorange) kept[name] = [...place.layout[name].range];
    state.ranges[chart.id] = kept;
    // Curves of a block are looked at together: they keep the same horizontal stretch.
    if (!isCurve(chart)) return;
    for (const other of spec.charts) {
      if (other === chart || !isCurve(other) || blockOf(other) !== blockOf(chart)) continue;
      const range = { ...state.ranges[other.id] };
      if (kept.xaxis) range.xaxis = kept.xaxis;
      else delete range.xaxis;
      state.ranges[other.id] = range;
      draw(other);
    }
  }

  const drawAll = () => spec.charts.forEach(draw);

  return { state, spec, around, blockOf, blockName, hiddenIn, seedsIn, stored, theme, draw, drawAll };
})();
