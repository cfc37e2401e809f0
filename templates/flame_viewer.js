{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// Flame graphs that can be searched, zoomed and turned round. The still picture is whole without
// this. A browser may save the page after this has run: the picture stays as it was, hidden beside
// what is drawn.
"use strict";
(function () {
  const ROW = 17, TOPS = 16;
  const {
    ALL, LEAVES, percent, pictured, unfolded, rest, kinds, shortened, reversed, sides, graphed, tops, boxes,
  } = flameGraphs;

  function make(name, attributes, text) {
    const element = document.createElement(name);
    Object.entries(attributes).forEach(function (pair) { element.setAttribute(pair[0], pair[1]); });
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // Elements of boxes, a row up or down from *bottom* for each.
  function elements(graph, found, bottom, step) {
    const space = "http://www.w3.org/2000/svg";
    found.forEach(function (box) {
      const element = document.createElementNS(space, "svg"), frame = box.frame;
      const title = document.createElementNS(space, "title");
      title.textContent = frame.words || graph.words(frame);
      box.y = bottom + step * box.row;
      element.setAttribute("class", frame.kind + (box.above ? " up" : ""));
      element.setAttribute("x", 100 * box.left + "%");
      element.setAttribute("y", box.y * ROW);
      element.setAttribute("width", 100 * box.width + "%");
      element.setAttribute("height", ROW - 1);
      element.setAttribute("role", "button");
      element.setAttribute("tabindex", "-1");
      element.append(title, document.createElementNS(space, "rect"));
      if (box.width >= 0.025) {
        const text = document.createElementNS(space, "text");
        text.setAttribute("x", 3);
        text.setAttribute("y", 12);
        text.textContent = frame.mark + frame.name;
        element.append(text);
        box.text = text;
      }
      box.element = element;
    });
    return found;
  }
  // A name that its box has no room for ends in "..": it is whole in the box's title.
  function fit(drawn, width, letter) {
    drawn.forEach(function (each) {
      if (!each.text) return;
      const name = Array.from(each.frame.mark + each.frame.name);
      const room = Math.floor((each.width * width - 6) / letter);
      each.text.textContent = name.length <= room ? name.join("")
        : room < 3 ? "" : name.slice(0, room - 2).join("") + "..";
    });
  }
  // How wide a letter of a name is: all are alike.
  function lettered(view) {
    const pen = document.createElement("canvas").getContext("2d"), text = view.querySelector("text");
    if (!pen || !text) return 0;
    const style = getComputedStyle(text);
    pen.font = style.fontSize + " " + style.fontFamily;
    return pen.measureText("m").width;
  }
  function rows(found) {
    return 1 + found.reduce(function (most, box) { return Math.max(most, box.row); }, 0);
  }

  function viewer(box, place) {
    const still = box.querySelector("svg.flame"), scroller = still.parentElement;
    box.querySelectorAll(".filter, .flame-view, .flame-told, .flame-tops").forEach(function (old) { old.remove(); });
    box.classList.remove("with-tops");
    delete box.dataset.drawn;
    // Frames take the focus.
    scroller.removeAttribute("tabindex");
    const view = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    ["width", "role", "aria-label"].forEach(function (name) { view.setAttribute(name, still.getAttribute(name)); });
    view.setAttribute("class", "flame flame-view");
    still.after(view);
    still.setAttribute("hidden", "");
    const bar = make("p", { class: "filter" });
    const label = make("label", { for: "flame-" + place }, "Search functions");
    const input = make("input", { type: "search", id: "flame-" + place });
    const counted = make("span", { role: "status" });
    const told = make("p", { class: "flame-told" });
    const reset = make("button", { type: "button" }, "Reset zoom");
    bar.append(label, input, reset);
    scroller.before(bar);
    scroller.after(told);

    let graph = pictured(still), all = null, drawn = [], zoomed = graph.top, current = null;
    let width = 0, letter = 0;
    let mode = "callers", whole = false, middle = -1, order = "self", quiet = true;
    const picture = box.closest("[id]"), own = "flame." + picture.id + "."
      + Array.from(picture.querySelectorAll(".flames")).indexOf(box);
    const views = {}, panel = make("div", { class: "flame-tops" });

    function data() {
      return whole ? all : all.short || (all.short = shortened(all));
    }
    function from(side) {
      const now = data(), unit = box.dataset.unit;
      if (!now[side]) now[side] = side === "leaves"
        ? graphed(reversed(now), unit, LEAVES) : graphed(now, unit, ALL);
      now[side].callees(now[side].top);
      return now[side];
    }
    function matches(name) {
      return input.value !== "" && name.toLowerCase().includes(input.value.toLowerCase());
    }
    function render() {
      let found = boxes(graph, zoomed), above = rows(found), below = 0;
      drawn = elements(graph, found, above - 1, -1);
      if (graph.callers) {
        found = boxes(graph.callers, graph.callers.top);
        below = rows(found) - 1;
        drawn = drawn.concat(elements(graph.callers, found, above - 1, 1).slice(1));
      }
      view.replaceChildren.apply(view, drawn.map(function (each) { return each.element; }));
      view.setAttribute("height", (above + below) * ROW);
      names();
      reset.disabled = mode !== "sandwich" && zoomed === graph.top;
      drawn.forEach(function (each) { each.element.classList.toggle("found", matches(each.frame.name)); });
      take(drawn.find(function (each) { return each.frame === zoomed; }), false);
    }
    function names() {
      letter = letter || (width ? lettered(view) : 0);
      if (width && letter) fit(drawn, width, letter);
    }
    new ResizeObserver(function (entries) {
      const now = entries[entries.length - 1].contentRect.width;
      if (now === width) return;
      width = now;
      names();
    }).observe(scroller);
    function take(each, focus) {
      if (!each) return;
      if (current) current.element.setAttribute("tabindex", "-1");
      current = each;
      each.element.setAttribute("tabindex", "0");
      if (focus) each.element.focus();
    }
    // What is seen, in the address: mode, user functions, search, and the way to the frame.
    function keep() {
      if (quiet) return;
      const way = [];
      for (let at = zoomed; at.up; at = at.up) way.unshift(graph.callees(at.up).indexOf(at));
      const said = [mode, whole ? 1 : 0, input.value, mode === "sandwich" ? data().names[middle] : way.join(".")];
      const plain = mode === "callers" && !whole && !input.value && !way.length;
      address.set(own, plain ? "" : said.map(encodeURIComponent).join("/"));
    }
    function recall() {
      const said = address.get(own).split("/").map(address.plain);
      if (said.length === 4 && all && ["callers", "leaves", "sandwich"].includes(said[0])) {
        whole = said[1] === "1" && all.kinds.includes("user");
        if (views.user) views.user.setAttribute("aria-pressed", whole);
        input.value = said[2];
        middle = data().names.indexOf(said[3]);
        show(said[0] === "sandwich" && middle < 0 ? "callers" : said[0], false);
        if (mode !== "sandwich") zoom(along(said[3]), false);
      } else if (said.length === 4 && !all) {
        input.value = said[2];
        zoom(along(said[3]), false);
        count();
      }
    }
    function along(way) {
      let frame = graph.top;
      way.split(".").filter(Boolean).forEach(function (step) { frame = graph.callees(frame)[step] || frame; });
      return frame;
    }
    function zoom(frame, focus) {
      zoomed = frame.other ? frame.up : frame;
      render();
      keep();
      if (focus) take(current, true);
      setTimeout(list);  // the picture first
    }
    // Which function a frame of any view is, in the stacks of the present one.
    function sandwich(number, focus) {
      if (number === undefined || number < 0) return;
      middle = number;
      show("sandwich", focus);
    }
    function show(next, focus) {
      mode = next;
      if (all) {
        const unit = box.dataset.unit, total = all.total;
        if (mode === "sandwich") {
          const pair = sides(data(), middle), kind = data().kinds[middle] + " middle";
          const name = { name: data().labels[middle], kind: kind };
          graph = graphed(pair[0], unit, name, total);
          graph.callers = graphed(pair[1], unit, name, total);
        } else graph = from(mode);
      }
      ["callers", "leaves"].forEach(function (name) { if (views[name]) views[name].setAttribute("aria-pressed", name === mode); });
      zoom(graph.top, focus);
      count();
      said();
    }
    function said() {
      told.textContent = mode === "sandwich"
        ? graph.top.name + " with what it calls above it, and its callers below. Escape goes back."
        : "Click or Enter zooms, Escape goes back, arrow keys move" + (all ? ", s shows the callers and callees of a function." : ".");
    }
    function count() {
      const found = input.value && (all ? from("callers") : graph).holders(matches);
      counted.textContent = found
        ? found.names + (found.names === 1 ? " function, " : " functions, ") + percent(found.share) + " of all" : "";
      drawn.forEach(function (each) { each.element.classList.toggle("found", matches(each.frame.name)); });
    }
    // The functions that hold most of what is zoomed in on, or of all.
    function list() {
      if (!all) return;
      const within = mode === "callers" ? zoomed : from("callers").top;
      const most = within.tops || (within.tops = tops(data(), within));
      most.sort(function (a, b) { return b[order] - a[order] || b.total - a.total || (a.name < b.name ? -1 : 1); });
      const table = make("table", {}), head = table.createTHead().insertRow(), body = table.createTBody();
      head.append(make("th", { scope: "col" }, "top functions"));
      ["self", "total"].forEach(function (column) {
        const heading = make("th", { scope: "col", class: "num" });
        if (column === order) heading.setAttribute("aria-sort", "descending");
        const button = make("button", { type: "button" }, column);
        button.addEventListener("click", function () { order = column; list(); });
        heading.append(button);
        head.append(heading);
      });
      most.slice(0, TOPS).forEach(function (top) {
        const row = body.insertRow(), button = make("button", { type: "button", title: top.name }, top.name);
        button.addEventListener("click", function () { sandwich(top.number, false); });
        row.insertCell().append(button);
        ["self", "total"].forEach(function (column) {
          const cell = row.insertCell();
          cell.className = "num";
          cell.textContent = percent(top[column] / all.total);
        });
      });
      panel.replaceChildren(table);
    }

    function at(event) {
      const element = event.target.closest(".flame-view > svg");
      return drawn.find(function (each) { return each.element === element; });
    }
    function before(frame) {
      return graph.callers && frame.up === graph.callers.top ? graph.top : frame.up;
    }
    // The widest box above or below that belongs to this one; or the one that this belongs to.
    function across(each, step) {
      const row = drawn.filter(function (other) { return other.y === each.y + step; });
      return row.filter(function (other) { return before(other.frame) === each.frame; })
        .sort(function (a, b) { return b.width - a.width; })[0]
        || row.find(function (other) { return before(each.frame) === other.frame; });
    }
    function beside(each, step) {
      const row = drawn.filter(function (other) { return other.y === each.y; })
        .sort(function (a, b) { return a.left - b.left; });
      return row[row.indexOf(each) + step];
    }
    function enter(each) {
      if (mode === "sandwich") sandwich(each.frame.number, true);
      else zoom(each.frame, true);
    }
    view.addEventListener("click", function (event) {
      const each = at(event);
      if (each) enter(each);
    });
    view.addEventListener("keydown", function (event) {
      const each = at(event);
      if (!each || event.ctrlKey || event.altKey || event.metaKey) return;
      const key = event.key;
      if (key === "Enter" || key === " ") enter(each);
      else if (key === "Escape") back(true);
      else if (key === "s" && all) sandwich(each.frame.number, true);
      else if (key === "ArrowUp") take(across(each, -1), true);
      else if (key === "ArrowDown") take(across(each, 1), true);
      else if (key === "ArrowLeft") take(beside(each, -1), true);
      else if (key === "ArrowRight") take(beside(each, 1), true);
      else if (key === "Home") take(drawn[0], true);
      else return;
      event.preventDefault();
    });
    function back(focus) {
      if (mode === "sandwich") show("callers", focus);
      else zoom(graph.top, focus);
    }
    function tell(event) {
      const each = at(event);
      if (each) told.textContent = each.frame.words || graph.words(each.frame);
    }
    // Chromium makes a svg element with such a listener a stop of its own.
    scroller.addEventListener("focusin", tell);
    reset.addEventListener("click", function () { back(false); });
    input.addEventListener("input", function () { count(); keep(); });

    // All stacks, once they are looked at.
    async function load(link) {
      const read = await unfolded(link);
      read.kinds = kinds(read, box);
      read.total = read.values.reduce(function (sum, value) { return sum + value; }, 0);
      all = read;
      // What the buttons show, before it is asked for.
      for (const step of [data, from.bind(null, "callers"), from.bind(null, "leaves")]) {
        await rest();
        step();
      }
      await rest();
      [["callers", "From callers"], ["leaves", "From leaves"]].forEach(function (pair) {
        const button = views[pair[0]] = make("button", { type: "button" }, pair[1]);
        button.addEventListener("click", function () { show(pair[0], false); });
        reset.before(button);
      });
      if (all.kinds.includes("user")) {
        const button = views.user = make("button", { type: "button", "aria-pressed": "false" }, "User functions");
        button.addEventListener("click", function () {
          whole = !whole;
          button.setAttribute("aria-pressed", whole);
          show(mode === "sandwich" ? "callers" : mode, false);
        });
        reset.before(button);
      }
      told.after(panel);
      box.classList.add("with-tops");
      quiet = true;
      show("callers", false);
      recall();
      quiet = false;
      setTimeout(function () { box.dataset.drawn = "all"; });
    }
    bar.append(counted);
    show("callers", false);
    quiet = false;
    const link = box.dataset.stacks && window.DecompressionStream
      && document.querySelector('a.download[download="' + box.dataset.stacks + '.gz"]');
    if (!link) {
      quiet = true;
      recall();
      quiet = false;
      return;
    }
    const seen = new IntersectionObserver(function (entries) {
      if (!entries.some(function (entry) { return entry.isIntersecting; })) return;
      seen.disconnect();
      load(link);
    });
    seen.observe(box);
  }
  document.querySelectorAll(".flames").forEach(viewer);
})();
