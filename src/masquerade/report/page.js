// Draws the figures of a page, follows a method or a client through them, sorts and searches tables.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const views = new Map();

  async function draw(id, spec) {
    const place = document.getElementById(`figure-${id}`);
    const still = [...place.childNodes];
    place.replaceChildren();
    try {
      // Expressions are interpreted: the page allows no text to become a program.
      const tooltip = { disableDefaultStyle: true };
      const options = { renderer: "svg", ast: true, actions: false, tooltip };
      const { view } = await vegaEmbed(place, spec, options);
      view.addEventListener("pointerover", (_, item) => follow("client", item?.datum?.client ?? ""));
      view.addEventListener("pointerout", () => follow("client", ""));
      views.get(id)?.view.finalize();
      views.set(id, { view, follows: "params" in spec });
      place.closest("figure").querySelector(".files")?.remove();
      place.closest("figure").append(files((kind) => picture(spec, kind), id, ["svg", "png"]));
      place.dataset.drawn = "";
    } catch (fault) {
      // What was drawn without a script stays.
      place.replaceChildren(...still);
      console.error(fault);
    }
  }

  function follow(name, value) {
    for (const { view, follows } of views.values()) {
      if (follows && view.signal(name) !== value) view.signal(name, value).runAsync();
    }
  }

  // A file has no page around it: it needs a ground, a title and a legend of its own.
  async function picture(spec, kind) {
    const alone = JSON.parse(JSON.stringify(spec).replaceAll("currentColor", "#1b1c1d"));
    delete alone.config.legend.disable;
    Object.assign(alone, { width: 560, background: "#ffffff" });
    alone.title = { text: alone.description, anchor: "start", fontSize: 14, offset: 12 };
    const { view, finalize } = await vegaEmbed(document.createElement("div"), alone, { ast: true });
    const url = await view.toImageURL(kind, 2);
    finalize();
    return url;
  }

  function files(make, name, kinds) {
    const row = document.createElement("div");
    row.className = "files";
    for (const kind of kinds) {
      const button = document.createElement("button");
      button.textContent = { md: "Markdown", tex: "LaTeX" }[kind] ?? kind.toUpperCase();
      button.title = `Save as ${name}.${kind}`;
      button.onclick = async () => {
        const link = document.createElement("a");
        link.href = await make(kind);
        link.download = `${name}.${kind}`;
        link.click();
      };
      row.append(button);
    }
    return row;
  }

  // A row's texts, the spread beside the value.
  const text = (cell) => [...cell.childNodes].map((each) => each.textContent.trim()).join(" ").trim();
  const texts = (row) => [...row.cells].map(text);

  const piped = (row) => `| ${row.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`;
  const SPECIAL = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
    "±": "$\\pm$", "–": "--", "−": "$-$", "\u00a0": "~" };
  const escaped = (text) => text.replace(/[\\~^±–−\u00a0]|[&%$#_{}]/g,
    (letter) => SPECIAL[letter] ?? `\\${letter}`);
  const line = (row) => `${row.map(escaped).join(" & ")} \\\\`;
  const WRITTEN = {
    csv(rows) {
      const quoted = (text) => (/[",]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
      return rows.map((row) => row.map(quoted).join(","));
    },
    md([heads, ...rows]) {
      return [piped(heads), `|---${"|--:".repeat(heads.length - 1)}|`, ...rows.map(piped)];
    },
    // With the rules of booktabs, as the command writes it.
    tex([heads, ...rows]) {
      const begin = `\\begin{tabular}{l${"r".repeat(heads.length - 1)}}`;
      return [begin, "\\toprule", line(heads), "\\midrule", ...rows.map(line), "\\bottomrule",
        "\\end{tabular}"];
    },
  };

  function written(table, kind) {
    const rows = [...table.rows].filter((row) => !row.hidden).map(texts);
    return URL.createObjectURL(new Blob([WRITTEN[kind](rows).join("\n") + "\n"]));
  }

  // Numbers by their size, what is none of them last; words by the alphabet.
  function sort(table, column, head) {
    const sign = head.ariaSort === "descending" ? 1 : -1;
    for (const each of table.tHead.rows[0].cells) each.ariaSort = null;
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    const rows = [...table.tBodies[0].rows].map((row) => {
      const words = text(row.cells[column]);
      return { row, words, size: parseFloat(words.replaceAll(",", "")) };
    });
    const numbers = rows.filter(({ size }) => !Number.isNaN(size));
    const others = rows.filter(({ size }) => Number.isNaN(size));
    numbers.sort((a, b) => sign * (a.size - b.size));
    others.sort((a, b) => sign * a.words.localeCompare(b.words));
    table.tBodies[0].append(...[...numbers, ...others].map(({ row }) => row));
  }

  for (const table of document.querySelectorAll("section table")) {
    const heads = table.tHead.rows[0].cells;
    [...heads].forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      button.onclick = () => sort(table, column, head);
      head.append(button);
    });
    const make = (kind) => written(table, kind);
    table.parentElement.after(files(make, "table", Object.keys(WRITTEN)));
  }

  for (const input of document.querySelectorAll("input[type=search]")) {
    const rows = [...document.querySelectorAll(`#${input.getAttribute("aria-controls")} tbody tr`)];
    input.hidden = false;
    input.oninput = () => {
      const wanted = input.value.trim().toLowerCase();
      for (const row of rows) row.hidden = !text(row.cells[0]).toLowerCase().includes(wanted);
      const left = rows.filter((row) => !row.hidden);
      follow("client", left.length === 1 ? text(left[0].cells[0]) : "");
    };
    for (const row of rows) {
      row.onpointerenter = () => follow("client", text(row.cells[0]));
      row.onpointerleave = () => follow("client", "");
    }
  }

  let held = "";
  for (const button of document.querySelectorAll(".methods button")) {
    const name = button.dataset.method;
    button.onpointerenter = () => follow("method", name);
    button.onpointerleave = () => follow("method", held);
    button.onclick = () => {
      held = held === name ? "" : name;
      for (const each of document.querySelectorAll(".methods button")) {
        each.ariaPressed = String(each.dataset.method === held);
      }
      follow("method", held);
    };
  }

  // On paper nothing can be unfolded, and the sheet is narrower than the screen.
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
    dispatchEvent(new Event("resize"));
  });

  // A page that is live draws its figures again as they grow.
  window.drawAll = async (specs) => {
    await Promise.all(Object.entries(specs).map(([id, spec]) => draw(id, spec)));
    follow("method", held);
    document.documentElement.dataset.drawn = views.size;
  };
  drawAll(charts);
})();
