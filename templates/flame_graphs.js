{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// Graphs of stacks, for flame_viewer.js to draw. Of all stacks where the page has them for download;
// else of the frames of the still picture. Two kinds, therefore, with the same functions:
//   top       the frame at the bottom: {name, kind, value, up: its caller, at: where in it}
//   callees   (frame) -> the frames that stand on it
//   holders   (test) -> {names: how many match, share: of all, through one of them}
"use strict";
const flameGraphs = (function () {
  const MOST = 1000, LEAST = 0.002, DEEPEST = 128, SLICE = 10 /* ms */;
  const KERNEL = "_[k]", BACK_ON = "(interrupts back on)", USER_CODE = "(user code)";
  const MARKS = { more: "▲ ", less: "▼ " };
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

  function number(value) { return value.toLocaleString("en"); }
  function percent(share) {
    if (share === 0 || share === 1) return share ? "100 %" : "0 %";
    return share < 0.0005 ? "<0.1 %" : share >= 0.9995 ? ">99.9 %" : (100 * share).toFixed(1) + " %";
  }
  function size(bytes) {
    let power = 0;
    for (; bytes >= 1024 && power < UNITS.length - 1; power += 1) bytes /= 1024;
    return Number(bytes.toPrecision(4)) + " " + UNITS[power];
  }
  function visible(text) {
    return text.replace(INVISIBLE, function (char) {
      return "\\u{" + char.codePointAt(0).toString(16) + "}";
    });
  }
  // The frames of a picture, as a graph.
  function pictured(still) {
    const path = [], frames = Array.from(still.children).map(function (element) {
      const kind = element.getAttribute("class"), changed = /less|more|same|unsure/.exec(kind);
      const title = element.querySelector("title").textContent;
      return {
        // A name may have colons; what is said of it has as many as its kind.
        name: title.split(": ").slice(0, changed ? -2 : -1).join(": "),
        kind: kind, words: title, mark: changed ? MARKS[changed[0]] || "" : "", callees: [],
        left: parseFloat(element.getAttribute("x")), value: parseFloat(element.getAttribute("width")),
        y: parseFloat(element.getAttribute("y")), up: null, at: 0,
      };
    });
    frames.forEach(function (frame) {
      while (path.length && path[path.length - 1].y <= frame.y) path.pop();
      frame.up = path[path.length - 1] || null;
      if (frame.up) {
        frame.up.callees.push(frame);
        frame.at = frame.left - frame.up.left;
      }
      path.push(frame);
    });
    return {
      top: frames[0],
      callees: function (frame) { return frame.callees; },
      holders: function (matches) {
        const found = frames.filter(function (frame) { return matches(frame.name); });
        const outermost = found.filter(function (frame) {
          for (let up = frame.up; up; up = up.up) if (matches(up.name)) return false;
          return true;
        });
        return {
          names: new Set(found.map(function (frame) { return frame.name; })).size,
          share: outermost.reduce(function (sum, frame) { return sum + frame.value; }, 0) / 100,
        };
      },
    };
  }

  // All stacks: names of frames once, each stack as their numbers, from its root.
  async function unfolded(link) {
    const chars = atob(link.href.split(",")[1]), packed = new Uint8Array(chars.length);
    for (let at = 0; at < chars.length; at += 1) packed[at] = chars.charCodeAt(at);
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const lines = (await new Response(plain).text()).split("\n");
    const numbers = new Map(), names = [], stacks = [], values = [];
    let began = performance.now();
    for (const line of lines) {
      const end = line.lastIndexOf(" ");
      if (end < 0) continue;
      const words = line.slice(0, end).split(";"), stack = new Uint32Array(words.length);
      for (let depth = 0; depth < words.length; depth += 1) {
        let known = numbers.get(words[depth]);
        if (known === undefined) numbers.set(words[depth], known = names.push(words[depth]) - 1);
        stack[depth] = known;
      }
      stacks.push(stack);
      values.push(Number(line.slice(end + 1)));
      if (performance.now() - began < SLICE) continue;
      await rest();
      began = performance.now();
    }
    return { names: names, labels: names.map(shown), stacks: stacks, values: values };
  }
  // Between long steps the page stays as quick as it was.
  function rest() { return new Promise(function (resume) { setTimeout(resume); }); }

  // What a frame is, as the class that colours it; as reports/pictures has it for the still picture.
  function kinds(data, box) {
    const first = new Set(box.dataset.root ? data.stacks.map(function (stack) { return stack[0]; }) : []);
    const sampled = data.names.some(function (name) { return name.endsWith(KERNEL); });
    const plumbing = new Set(box.dataset.plumbing.split(" "));
    return data.names.map(function (name, each) {
      if (first.has(each)) return box.dataset.root;
      if (name === BACK_ON) return "hidden";
      if (name.startsWith("(")) return "none";
      if (sampled && !name.endsWith(KERNEL)) return "user";
      if (plumbing.has(name.split(" [")[0])) return "plumbing";
      return name.includes(" [") ? "module" : "kernel";
    });
  }

  // The task's own functions that follow each other as one frame below the kernel's.
  function shortened(data) {
    const one = data.names.length;
    if (!data.kinds.includes("user")) return data;
    return {
      names: data.names.concat(USER_CODE), labels: data.labels.concat(USER_CODE), kinds: data.kinds.concat("user"), values: data.values,
      stacks: data.stacks.map(function (stack) {
        return stack.map(function (name) { return data.kinds[name] === "user" ? one : name; })
          .filter(function (name, depth, whole) { return name !== one || whole[depth - 1] !== one; });
      }),
    };
  }

  function shown(name) { return visible(name.replace(KERNEL, "")) || "(no name)"; }

  const ALL = { name: "all", kind: "root" }, LEAVES = { name: "all, from the leaves", kind: "root" };
  // Stacks as a graph: frames are made when they are looked at. whole: what shares are of.
  function graphed(data, unit, bottom, whole) {
    function frame(name, depth, members, up) {
      let value = 0;
      members.forEach(function (stack) { value += data.values[stack]; });
      return {
        number: name, depth: depth, members: members, up: up, value: value, at: 0, made: null, mark: "",
        name: depth ? data.labels[name] : bottom.name, kind: depth ? data.kinds[name] : bottom.kind,
      };
    }
    const top = frame(-1, 0, data.stacks.map(function (_, stack) { return stack; }), null);
    function words(frame) {
      const exact = unit === "bytes" && frame.value >= 1024 ? " (" + number(frame.value) + " bytes)" : "";
      const amount = unit === "bytes" ? size(frame.value) : number(frame.value) + " " + unit;
      return frame.name + ": " + amount + exact + ", " + percent(frame.value / (whole || top.value));
    }
    function callees(caller) {
      if (caller.made) return caller.made;
      const through = new Map();
      let own = 0;
      caller.members.forEach(function (stack) {
        const frames = data.stacks[stack];
        if (frames.length <= caller.depth || caller.depth === DEEPEST) {
          own += data.values[stack];
          return;
        }
        const name = frames[caller.depth];
        if (through.has(name)) through.get(name).push(stack); else through.set(name, [stack]);
      });
      caller.made = Array.from(through, function (pair) {
        return frame(pair[0], caller.depth + 1, pair[1], caller);
      }).sort(function (a, b) { return a.name < b.name ? -1 : 1; });
      caller.made.forEach(function (callee) {
        callee.at = own;
        own += callee.value;
      });
      return caller.made;
    }
    function holders(matches) {
      const hit = data.labels.map(matches);
      let through = 0;
      data.stacks.forEach(function (stack, place) {
        if (stack.some(function (name) { return hit[name]; })) through += data.values[place];
      });
      return { names: hit.filter(Boolean).length, share: through / top.value };
    }
    return { top: top, callees: callees, holders: holders, words: words };
  }

  // Functions by what passes through them, in the stacks of a frame; recursion counts once.
  function tops(data, within) {
    const self = new Float64Array(data.names.length), total = new Float64Array(data.names.length);
    const seen = new Int32Array(data.names.length).fill(-1);
    within.members.forEach(function (stack) {
      const frames = data.stacks[stack], value = data.values[stack];
      for (let depth = Math.max(within.depth - 1, 0); depth < frames.length; depth += 1) {
        if (seen[frames[depth]] === stack) continue;
        seen[frames[depth]] = stack;
        total[frames[depth]] += value;
      }
      if (frames.length) self[frames[frames.length - 1]] += value;
    });
    return data.labels.map(function (name, each) {
      return { number: each, name: name, self: self[each], total: total[each] };
    }).filter(function (each) { return each.total; });
  }

  // The same stacks from their leaves; and those through one function, from it to either side.
  function reversed(data) {
    return Object.assign({}, data, {
      stacks: data.stacks.map(function (stack) { return stack.slice().reverse(); }),
    });
  }
  function sides(data, name) {
    const through = data.stacks.map(function (stack, place) {
      return { stack: stack, value: data.values[place], at: stack.indexOf(name) };
    }).filter(function (each) { return each.at >= 0; });
    const values = through.map(function (each) { return each.value; });
    return [
      function (each) { return each.stack.slice(each.at + 1); },
      function (each) { return each.stack.slice(0, each.at).reverse(); },
    ].map(function (side) { return Object.assign({}, data, { values: values, stacks: through.map(side) }); });
  }

  // The boxes of a graph zoomed in on a frame: {frame, row from the bottom, left and width of 1}.
  function boxes(graph, zoomed) {
    for (let least = LEAST; ; least *= 2) {
      const found = [];
      let below = 0;
      for (let up = zoomed.up; up; up = up.up) below += 1;
      for (let up = zoomed.up, row = below; up; up = up.up) {
        found.unshift({ frame: up, row: --row, left: 0, width: 1, above: true });
      }
      const todo = [{ frame: zoomed, row: below, left: 0, width: 1 }];
      while (todo.length && found.length <= MOST) {
        const box = todo.pop();
        found.push(box);
        if (box.frame.other) continue;
        const hidden = { value: 0, stacks: 0, at: 0 }, scale = box.width / (box.frame.value || 1), on = [];
        graph.callees(box.frame).forEach(function (callee) {
          const left = box.left + (callee.at - hidden.value) * scale, width = callee.value * scale;
          if (width >= least) on.push({ frame: callee, row: box.row + 1, left: left, width: width });
          else if (callee.members) {
            hidden.value += callee.value;
            hidden.stacks += callee.members.length;
          }
          hidden.at = callee.at + callee.value;
        });
        if (hidden.value * scale >= least) on.push({
          frame: { name: "other (" + number(hidden.stacks) + (hidden.stacks === 1 ? " stack)" : " stacks)"),
            kind: "other", value: hidden.value, mark: "", up: box.frame, other: true },
          row: box.row + 1, left: box.left + (hidden.at - hidden.value) * scale, width: hidden.value * scale,
        });
        while (on.length) todo.push(on.pop());
      }
      if (!todo.length) return found;
    }
  }

  return {
    ALL: ALL, LEAVES: LEAVES, percent: percent, pictured: pictured, unfolded: unfolded, rest: rest, kinds: kinds,
    shortened: shortened, reversed: reversed, sides: sides, graphed: graphed, tops: tops, boxes: boxes,
  };
})();
