"use strict";
// What can be clicked on the page: themes, legends, tables, texts to copy; printing; and a live page that follows its run.
(() => {
  const { state, spec, around, blockOf, blockName, hiddenIn, seedsIn, stored, theme, draw, drawAll } = report;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const press = (selector, isPressed) => all(selector).forEach((b) => b.setAttribute("aria-pressed", isPressed(b)));
  const tables = all("table[data-sortable]");

  function applyTheme() {
    document.documentElement.dataset.theme = theme();
    const other = theme() === "dark" ? "Light" : "Dark";
    const button = document.getElementById("theme");
    button.textContent = other;
    button.setAttribute("aria-label", `${other} theme`);
    drawAll();
  }

  function switchTheme() {
    stored(() => localStorage.setItem("report theme", theme() === "dark" ? "light" : "dark"));
    applyTheme();
  }

  function showChoices() {
    press("[data-axis]", (b) => b.dataset.axis === state.axis);
    press("[data-log]", () => state.log);
    press(".key", (b) => !hiddenIn(around(b)).includes(b.dataset.key));
    press(".seeds", (b) => seedsIn(around(b)).includes(b.dataset.key));
  }

  function refresh(block) {
    showChoices();
    spec.charts.filter((chart) => !block || blockOf(chart) === block).forEach(draw);
  }

  function chooseAxis(choice) {
    Object.assign(state, choice);
    for (const kept of Object.values(state.ranges)) delete kept.xaxis;
    refresh();
  }

  const flip = (list, item) => (list.includes(item) ? list.filter((other) => other !== item) : [...list, item]);

  function switchCurve(button, alone) {
    const block = around(button);
    const keys = all(".key", block).map((other) => other.dataset.key);
    const others = keys.filter((key) => key !== button.dataset.key);
    const hidden = alone ? others : flip(hiddenIn(block), button.dataset.key);
    state.hidden[blockName(block)] = hidden.length === keys.length ? [] : hidden;
    refresh(block);
  }

  function switchSeeds(button) {
    const block = around(button);
    state.seeds[blockName(block)] = flip(seedsIn(block), button.dataset.key);
    refresh(block);
  }

  // Numbers are looked at from the largest down, words from A on; a second click turns the order round.
  function chooseOrder(head) {
    const [first, second] = head.matches(".number") ? ["descending", "ascending"] : ["ascending", "descending"];
    const table = head.closest("table");
    const direction = head.getAttribute("aria-sort") === first ? second : first;
    state.sorted[tables.indexOf(table)] = [head.cellIndex, direction];
    sort(table, head.cellIndex, direction);
  }

  function sort(table, column, direction) {
    [...table.tHead.rows[0].cells].forEach((h, i) =>
      h.setAttribute("aria-sort", i === column ? direction : "none"),
    );
    const body = table.tBodies[0];
    const valueOf = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => {
      if (a === "" || b === "") return (a === "") - (b === ""); // what is missing comes last either way
      const difference = Number(a) - Number(b);
      const order = Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference;
      return direction === "descending" ? -order : order;
    };
    [...body.rows].sort((a, b) => compare(valueOf(a), valueOf(b))).forEach((row) => body.append(row));
  }

  // Says of a table that it is wider than its place, for who sees no scroll bar.
  function showSideways(wide) {
    const scrolls = wide.scrollWidth > wide.clientWidth + 1;
    wide.classList.toggle("scrolls", scrolls);
    wide.classList.toggle("at-end", wide.scrollLeft + wide.clientWidth >= wide.scrollWidth - 1);
    wide.nextElementSibling.hidden = !scrolls;
  }

  async function copy(button) {
    const words = button.parentElement.querySelector("pre").textContent;
    try {
      await navigator.clipboard.writeText(words);
    } catch {
      const area = Object.assign(document.createElement("textarea"), { value: words });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say(button, "Copied", "Copied");
    setTimeout(() => say(button, "Copy", ""), 1600);
  }

  function say(button, label, words) {
    button.textContent = label;
    document.getElementById("announce").textContent = words;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") switchTheme();
    else if (button.matches(".copy")) copy(button);
    else if (button.matches("[data-axis]")) chooseAxis({ axis: button.dataset.axis });
    else if (button.matches("[data-log]")) chooseAxis({ log: !state.log });
    else if (button.matches(".key")) switchCurve(button, event.shiftKey);
    else if (button.matches(".seeds")) switchSeeds(button);
    else if (button.closest("thead")) chooseOrder(button.closest("th"));
  });
  document.addEventListener("dblclick", (event) => {
    const button = event.target.closest(".key");
    if (button) switchCurve(button, true);
  });

  // A live page loads itself again: a page that is a file may look for news in no other way.
  const live = Number(document.documentElement.dataset.live || 0);
  let touched = 0;
  const touch = () => (touched = Date.now());

  function reload() {
    // Not while somebody reads a label, selects a text, or looks elsewhere.
    if (document.hidden || Date.now() - touched < 1500 || String(getSelection())) return setTimeout(reload, 500);
    const open = all("details").map((details) => details.open);
    const kept = JSON.stringify({ ...state, open, scroll: [scrollX, scrollY] });
    stored(() => sessionStorage.setItem(`report ${location.pathname}`, kept)); // or the next page starts afresh
    location.reload();
  }

  if (live) {
    for (const kind of ["pointermove", "pointerdown", "keydown", "wheel", "touchmove"])
      addEventListener(kind, touch);
    setTimeout(reload, 1000 * live);
  }
  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => showSideways(entry.target)));
  for (const wide of all(".wide")) {
    sizes.observe(wide);
    wide.addEventListener("scroll", () => showSideways(wide), { passive: true });
  }
  const print = (printing) => () => applyTheme(Object.assign(state, { printing }));
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  applyTheme();
  showChoices();
  for (const [i, [column, direction]] of Object.entries(state.sorted))
    if (tables[i]) sort(tables[i], column, direction);
  if (state.open) all("details").forEach((details, i) => (details.open = Boolean(state.open[i])));
  if (state.scroll) scrollTo(...state.scroll);
})();
