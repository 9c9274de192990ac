// The page of a model: asks its own server, and shows the answers. All text goes in by textContent.
"use strict";

const form = document.getElementById("form");
const field = document.getElementById("text");
const statusLine = document.getElementById("status");
const columns = document.getElementById("models");
const views = [];

async function ask(path, question) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// An element with properties and children; strings become text, never markup.
function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function visible(text) {
  return text.replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5");
}

function percent(probability) {
  return (100 * probability).toFixed(2) + "%";
}

// White for 0 to red for 1; the text on it stays black, and readable.
function shade(element, share, hue) {
  const light = 100 - 45 * Math.min(1, Math.max(0, share));
  element.style.backgroundColor = `hsl(${hue} 90% ${light}%)`;
}

function numbers(count) {
  return Array.from({ length: count }, (_, n) => String(n));
}

// A list to choose from, with its label.
function pick(label, options, value, act) {
  return make("label", {}, `${label} `, make(
    "select", { class: `pick-${label.toLowerCase()}`, onchange: (event) => shown(() => act(event.target.value)) },
    ...options.map((one) => make("option", { value: one, textContent: one, selected: one === value })),
  ));
}

async function shown(work) {
  statusLine.className = "";
  statusLine.textContent = "computing (the first text of a length compiles)";
  try {
    await work();
    statusLine.textContent = "";
  } catch (error) {
    statusLine.className = "error";
    statusLine.textContent = error.message;
  }
}

class View {
  constructor(number, about) {
    this.number = number;
    this.about = about;
    this.body = make("div", {});
    this.element = make(
      "section", { "aria-label": about.name },
      make("h2", { textContent: `${about.name} (${about.system})` }), this.body,
    );
  }

  async look(question) {
    this.found = await ask("/api/look", { model: this.number, ...question });
    this.tokens = this.found.tokens.map((one) => one.id);
    this.targets = this.found.targets ? this.found.targets.map((one) => one.id) : null;
    this.draw();
  }

  question(more) {
    const asked = { model: this.number, tokens: this.tokens, ...more };
    if (this.targets) asked.targets = this.targets;
    return asked;
  }

  draw() {
    const { kind } = this.about;
    this.detail = make("div", { class: "detail", "aria-live": "polite" });
    const parts = [];
    if (kind === "generated") {
      parts.push(make("h3", { textContent: "Input" }), this.row(this.found.tokens));
      if (this.found.filled.length) {
        parts.push(make("h3", { textContent: "Filled spans" }), this.row(this.found.filled));
      }
      parts.push(make("h3", { textContent: "Generated, shaded by surprisal" }));
      parts.push(this.row(this.found.targets));
    } else {
      const titles = {
        next_tokens: "Text, shaded by surprisal", masks: "Text: choose a token, or mask it",
        replaced: "Text, shaded by the probability that a token was replaced", states: "Text",
      };
      parts.push(make("h3", { textContent: titles[kind] }), this.row(this.found.tokens));
    }
    parts.push(this.detail);
    if (this.found.next) {
      parts.push(make("h3", { textContent: "Next token: choose one to continue" }));
      parts.push(this.list(this.found.next, (one) => this.extend(one.id)));
    }
    if (kind === "masks") this.showMasks(parts);
    this.attentionBox = make("div", {});
    this.lensBox = make("div", {});
    this.expertsBox = make("div", {});
    parts.push(make("h3", { textContent: "Inside" }), make(
      "div", { class: "controls" },
      make("button", { type: "button", textContent: "Attention", className: "open-attention",
        onclick: () => shown(() => this.attention("", 0, 0)) }),
      ...(this.about.lens ? [make("button", { type: "button", textContent: "Logit lens",
        className: "open-lens", onclick: () => shown(() => this.lens()) })] : []),
      ...(this.about.routes ? [make("button", { type: "button", textContent: "Experts",
        className: "open-experts", onclick: () => shown(() => this.experts("", 0)) })] : []),
    ), this.attentionBox, this.lensBox, this.expertsBox);
    this.body.replaceChildren(...parts);
  }

  row(tokens) {
    return make("div", { class: "tokens" }, ...tokens.map((one, place) => {
      const button = make("button", {
        type: "button", class: "token", textContent: visible(one.text), "aria-pressed": "false",
        onclick: () => this.choose(button, one, place),
      });
      if (one.filled) button.classList.add("filled");
      if (one.bits !== undefined) {
        shade(button, one.bits / 16, 12);
        button.title = `${one.bits.toFixed(2)} bits, p = ${percent(one.probability)}`;
      }
      if (one.replaced !== undefined) {
        shade(button, one.replaced, 12);
        button.title = `replaced with p = ${percent(one.replaced)}`;
      }
      return button;
    }));
  }

  choose(button, one, place) {
    for (const other of this.body.querySelectorAll(".token")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    const parts = [make("p", { textContent: `${visible(one.text)} (id ${one.id}) ${button.title}` })];
    if (this.about.mask !== null && one.id !== this.about.mask) {
      parts.push(make("button", { type: "button", textContent: "Mask it", class: "mask-it",
        onclick: () => this.replace(place, this.about.mask) }));
    }
    if (one.top) {
      parts.push(make("p", { class: "note", textContent: "Likeliest in its place; choose one to put it there" }));
      parts.push(this.list(one.top, (other) => this.replace(place, other.id)));
    }
    this.detail.replaceChildren(...parts);
  }

  showMasks(parts) {
    this.found.tokens.forEach((one, place) => {
      if (one.id !== this.about.mask) return;
      parts.push(make("h3", { textContent: `Mask at token ${place}` }));
      parts.push(this.list(one.top, (other) => this.replace(place, other.id)));
    });
  }

  list(tokens, act) {
    return make("ol", {}, ...tokens.map((one) => make(
      "li", {},
      make("button", { type: "button", class: "token", textContent: visible(one.text), onclick: () => act(one) }),
      make("span", { class: "probability", textContent: percent(one.probability) }),
      make("meter", { min: 0, max: 1, value: one.probability, "aria-label": percent(one.probability) }),
    )));
  }

  extend(id) {
    const tokens = this.targets ? this.tokens : [...this.tokens, id];
    const targets = this.targets ? { targets: [...this.targets, id] } : {};
    return shown(() => this.look({ tokens, ...targets }));
  }

  // Another token in a place; what an encoder-decoder generated after it is left out.
  replace(place, id) {
    if (this.targets) {
      return shown(() => this.look({ tokens: this.tokens, targets: [...this.targets.slice(0, place), id] }));
    }
    return shown(() => this.look({ tokens: this.tokens.map((old, n) => (n === place ? id : old)) }));
  }

  async attention(side, layer, head) {
    const found = await ask("/api/attention", this.question({ side, layer, head }));
    const cell = (weight, place) => {
      const made = make("td", { title: `${visible(found.keys[place].text)}: ${percent(weight)}` });
      shade(made, weight, 215);
      return made;
    };
    this.attentionBox.replaceChildren(
      make("div", { class: "controls" },
        pick("Side", found.sides, found.side, (one) => this.attention(one, 0, 0)),
        pick("Layer", numbers(found.layers), String(layer), (n) => this.attention(found.side, Number(n), head)),
        pick("Head", numbers(found.heads), String(head), (n) => this.attention(found.side, layer, Number(n)))),
      make("p", { class: "note", textContent: "A row attends to its columns" }),
      make("div", { class: "scroll", tabIndex: 0 }, make("table", { class: "attention" },
        make("thead", {}, make("tr", {}, make("th", {}), ...found.keys.map((one) => make("th", { textContent: visible(one.text) })))),
        make("tbody", {}, ...found.weights.map((row, n) => make("tr", {},
          make("th", { textContent: visible(found.queries[n].text) }), ...row.map(cell)))))),
    );
  }

  async experts(side, layer) {
    const found = await ask("/api/experts", this.question({ side, layer }));
    const token = (one) => {
      const by = one.experts.map((n) => `expert ${n}`).join(", ") || "dropped";
      const made = make("span", { class: "token routed", title: by },
        visible(one.text), make("sub", { textContent: one.experts.join(",") || "dropped" }));
      if (one.experts.length) shade(made, 0.6, (360 * one.experts[0]) / found.experts);
      else made.classList.add("dropped");
      return made;
    };
    const all = numbers(found.experts).map((name) => [
      `expert ${name}`, found.tokens.filter((one) => one.experts.includes(Number(name))).length,
    ]);
    all.push(["dropped", found.tokens.filter((one) => !one.experts.length).length]);
    this.expertsBox.replaceChildren(
      make("div", { class: "controls" },
        pick("Side", found.sides, found.side, (one) => this.experts(one, 0)),
        pick("Layer", numbers(found.layers), String(layer), (n) => this.experts(found.side, Number(n)))),
      make("p", { class: "note", textContent: "Each token by the expert that computes it in this sparse layer; a dropped one skips the layer" }),
      make("div", { class: "tokens" }, ...found.tokens.map(token)),
      make("p", { class: "counts", textContent: all.filter(([, count]) => count).map(([name, count]) => `${name}: ${count}`).join("; ") }),
    );
  }

  async lens() {
    const found = await ask("/api/lens", this.question({}));
    const cell = (one) => {
      const made = make("td", { textContent: visible(one.text), title: percent(one.probability) });
      shade(made, one.probability, 140);
      return made;
    };
    this.lensBox.replaceChildren(
      make("p", { class: "note", textContent: "The likeliest token where the output layer reads each layer, the last one at the top" }),
      make("div", { class: "scroll", tabIndex: 0 }, make("table", { class: "lens" },
        make("tbody", {}, ...found.layers.map((row, n) => make("tr", {},
          make("th", { textContent: n === 0 ? "input" : `layer ${n - 1}` }), ...row.map(cell))).reverse()),
        make("tfoot", {}, make("tr", {}, make("th", { textContent: "token" }),
          ...found.tokens.map((one) => make("td", { textContent: visible(one.text) })))))),
    );
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  shown(async () => {
    for (const view of views) await view.look({ text: field.value });
  });
});
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey) form.requestSubmit();
});
shown(async () => {
  (await ask("/api/about", {})).forEach((about, number) => views.push(new View(number, about)));
  columns.replaceChildren(...views.map((view) => view.element));
});
