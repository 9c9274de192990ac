// The page of a model: asks its own server, and shows the answers. All text goes in by textContent.
"use strict";

const form = document.getElementById("form");
const field = document.getElementById("text");
const statusLine = document.getElementById("status");
const columns = document.getElementById("models");
const views = [];
const MOST_BITS = 16; // the surprisal with the darkest shade
// What a model of a kind does, and the title of its text.
const KINDS = {
  next_tokens: ["continues text", "Text, shaded by surprisal"],
  generated: ["reads a text and writes another", "Input"],
  masks: ["fills in masked tokens", "Text: choose a token, or mask it"],
  replaced: ["detects replaced tokens", "Text, shaded by the probability that a token was replaced"],
  states: ["computes hidden states", "Text"],
};

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

// A token's text with marks for blanks and ends of lines, in the soft colour.
function readable(text) {
  const parts = text.split(/([ \n\t])/).filter((part) => part !== "");
  const marks = { " ": "\u2423", "\n": "\u21b5", "\t": "\u21e5" };
  return parts.map((part) => (marks[part] ? make("span", { class: "mark", textContent: marks[part] }) : part));
}

function visible(text) {
  return text.replaceAll(" ", "\u2423").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5");
}

function percent(probability) {
  return (100 * probability).toFixed(2) + "%";
}

// Between the paper's colour for 0 and the hue for 1: a variable of the style, or a colour.
function shade(element, share, hue) {
  element.classList.add("shaded");
  element.style.setProperty("--share", Math.min(1, Math.max(0, share)).toFixed(4));
  element.style.setProperty("--hue", hue.startsWith("--") ? `var(${hue})` : hue);
  return element;
}

// The colours from one end to the other, with what they stand for.
function legend(low, high, hue) {
  const steps = [0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => shade(make("span", {}), share, hue));
  return make("p", { class: "legend" }, low, make("span", { class: "scale" }, ...steps), high);
}

function copy(content) {
  return navigator.clipboard.write([new ClipboardItem(content)]);
}

// What the browser shows of tokens or a table, painted with its computed colours.
function picture(element) {
  const scroll = element.closest(".scroll");
  if (scroll) scroll.scrollTo(0, 0);
  const whole = element.getBoundingClientRect(), scale = 2;
  const canvas = make("canvas", { width: Math.ceil(whole.width * scale), height: Math.ceil(whole.height * scale) });
  const paint = canvas.getContext("2d");
  paint.scale(scale, scale);
  paint.fillStyle = getComputedStyle(document.body).backgroundColor;
  paint.fillRect(0, 0, whole.width, whole.height);
  paint.textBaseline = "middle";
  for (const one of element.querySelectorAll("th, td, .token")) {
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    const [x, y] = [box.left - whole.left, box.top - whole.top];
    paint.fillStyle = style.backgroundColor;
    paint.fillRect(x, y, box.width, box.height);
    if (one.tagName !== "TH") {
      paint.strokeStyle = style.borderTopColor;
      paint.strokeRect(x, y, box.width, box.height);
    }
    paint.fillStyle = style.color;
    paint.font = style.font;
    paint.save();
    if (style.writingMode === "vertical-rl") {
      paint.translate(x + box.width / 2, y + 3);
      paint.rotate(Math.PI / 2);
    } else paint.translate(x + 3, y + box.height / 2);
    paint.fillText(one.textContent, 0, 0);
    paint.restore();
  }
  return new Promise((made) => canvas.toBlob(made, "image/png"));
}

// Buttons that copy an answer of the server, and the element that shows it.
function copies(found, element) {
  const json = () => copy({ "text/plain": new Blob([JSON.stringify(found, null, 2)], { type: "text/plain" }) });
  return make("div", { class: "controls copies" },
    make("button", { type: "button", class: "copy-json", textContent: "Copy JSON", onclick: () => shown(json, "JSON copied") }),
    make("button", { type: "button", class: "copy-png", textContent: "Copy PNG",
      onclick: () => shown(() => copy({ "image/png": picture(element) }), "PNG copied") }));
}

// One stop of the Tab key for a row of tokens; arrow keys move within it.
function roving(row) {
  const own = [...row.children];
  own.forEach((one, n) => { one.tabIndex = n ? -1 : 0; });
  row.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = own[own.indexOf(event.target) + step];
    if (!step || !next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return row;
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

async function shown(work, done = "") {
  statusLine.className = "";
  statusLine.textContent = "computing (the first text of a length compiles)";
  try {
    await work();
    statusLine.textContent = done;
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
      make("h2", { textContent: about.name }),
      make("p", { class: "note about", textContent: this.description() }), this.body,
    );
  }

  description() {
    const { system, kind, sizes, most } = this.about;
    const said = Object.entries(sizes).map(([name, size]) => `${size.toLocaleString("en")} ${name}`);
    return `${system}, ${KINDS[kind][0]}: ${said.join(", ")}; shows texts of up to ${most} tokens`;
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
    } else parts.push(make("h3", { textContent: KINDS[kind][1] }), this.row(this.found.tokens));
    if (kind === "generated" || kind === "next_tokens") {
      parts.push(legend("0 bits", `${MOST_BITS} bits or more`, "--surprise"));
    }
    if (kind === "replaced") parts.push(legend("0%", "100%", "--surprise"));
    parts.push(copies(this.found, parts.findLast((one) => one.classList.contains("tokens"))), this.detail);
    if (this.found.next) {
      parts.push(make("h3", { textContent: "Next token: choose one to continue" }));
      parts.push(this.list(this.found.next, (one) => this.extend(one.id)));
    }
    if (kind === "masks") this.showMasks(parts);
    this.attentionBox = make("div", {});
    this.layersBox = make("div", {});
    this.lensBox = make("div", {});
    this.expertsBox = make("div", {});
    this.neighboursBox = make("div", {});
    parts.push(make("h3", { textContent: "Inside" }), make(
      "div", { class: "controls" },
      make("button", { type: "button", textContent: "Attention", className: "open-attention",
        onclick: () => shown(() => this.attention("", 0, 0)) }),
      make("button", { type: "button", textContent: "Layers", className: "open-layers",
        onclick: () => shown(() => this.layers("")) }),
      ...(this.about.lens ? [make("button", { type: "button", textContent: "Logit lens",
        className: "open-lens", onclick: () => shown(() => this.lens()) })] : []),
      ...(this.about.routes ? [make("button", { type: "button", textContent: "Experts",
        className: "open-experts", onclick: () => shown(() => this.experts("", 0)) })] : []),
      make("button", { type: "button", textContent: "Neighbours", className: "open-neighbours",
        onclick: () => this.askNeighbours() }),
    ), this.attentionBox, this.layersBox, this.lensBox, this.expertsBox, this.neighboursBox);
    this.body.replaceChildren(...parts);
  }

  row(tokens) {
    return roving(make("div", { class: "tokens" }, ...tokens.map((one, place) => {
      const button = make("button", {
        type: "button", class: "token", "aria-pressed": "false",
        onclick: () => this.choose(button, one, place),
      }, ...readable(one.text));
      if (one.filled) button.classList.add("filled");
      if (one.bits !== undefined) {
        shade(button, one.bits / MOST_BITS, "--surprise");
        button.title = `${one.bits.toFixed(2)} bits, p = ${percent(one.probability)}`;
      }
      if (one.replaced !== undefined) {
        shade(button, one.replaced, "--surprise");
        button.title = `replaced with p = ${percent(one.replaced)}`;
      }
      return button;
    })));
  }

  choose(button, one, place) {
    for (const other of this.body.querySelectorAll(".token")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    const spelled = one.piece === one.text ? "" : `, in the vocabulary ${visible(one.piece)}`;
    const parts = [make("p", { textContent: `${visible(one.text)} (id ${one.id}${spelled}) ${button.title}` })];
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
      make("button", { type: "button", class: "token", onclick: () => act(one) }, ...readable(one.text)),
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
      return shade(made, weight, "--weight");
    };
    const table = make("table", { class: "attention" },
      make("thead", {}, make("tr", {}, make("th", {}), ...found.keys.map((one) => make("th", {}, ...readable(one.text))))),
      make("tbody", {}, ...found.weights.map((row, n) => make("tr", {},
        make("th", {}, ...readable(found.queries[n].text)), ...row.map(cell)))));
    this.attentionBox.replaceChildren(
      make("div", { class: "controls" },
        pick("Side", found.sides, found.side, (one) => this.attention(one, 0, 0)),
        pick("Layer", numbers(found.layers), String(layer), (n) => this.attention(found.side, Number(n), head)),
        pick("Head", numbers(found.heads), String(head), (n) => this.attention(found.side, layer, Number(n)))),
      make("p", { class: "note", textContent: "The token of a row attends to the tokens of its columns" }),
      legend("0%", "100%", "--weight"), make("div", { class: "scroll", tabIndex: 0 }, table), copies(found, table),
    );
  }

  // A row for each layer: what it changes in the states, and a shaded cell for each head's share.
  async layers(side) {
    const found = await ask("/api/layers", this.question({ side }));
    const { layers, attention } = found;
    const patterns = attention ? ["diagonal", "vertical"] : [];
    const count = layers ? layers.l2.length : attention.diagonal.length;
    const number = (value, digits) => make("td", { textContent: value.toFixed(digits) });
    const head = (share, n) => shade(make("td", { title: `head ${n}`, textContent: percent(share) }), share, "--weight");
    const row = (n) => make("tr", {},
      make("th", { textContent: `layer ${n}` }),
      ...(layers ? [number(layers.l2[n], 2), number(layers.degrees[n], 1), number(layers.cosine[n], 3)] : []),
      ...patterns.flatMap((name) => attention[name][n].map(head)));
    const heads = patterns.flatMap((name) => attention[name][0].map((_, n) => `${name} ${n}`));
    const table = make("table", { class: "layers" },
      make("thead", {}, make("tr", {}, ...["", ...(layers ? ["L2 distance", "degrees", "cosine"] : []), ...heads].map(
        (name) => make("th", { textContent: name })))),
      make("tbody", {}, ...numbers(count).map((n) => row(Number(n)))));
    const shares = attention ? `; uniform attention has ${attention.uniform.map(percent).join(" (diagonal) and ")} (vertical)` : "";
    this.layersBox.replaceChildren(
      make("div", { class: "controls" }, pick("Side", found.sides, found.side, (one) => this.layers(one))),
      make("p", { class: "note", textContent: `The change from input to output of each layer, and each head's share of attention on the diagonal and in vertical stripes${shares}` }),
      legend("0%", "100%", "--weight"), make("div", { class: "scroll", tabIndex: 0 }, table), copies(found, table),
    );
  }

  async experts(side, layer) {
    const found = await ask("/api/experts", this.question({ side, layer }));
    const token = (one) => {
      const by = one.experts.map((n) => `expert ${n}`).join(", ") || "dropped";
      const made = make("span", { class: "token routed", title: by },
        ...readable(one.text), make("sub", { textContent: one.experts.join(",") || "dropped" }));
      if (one.experts.length) shade(made, 0.5, `hsl(${(360 * one.experts[0]) / found.experts} 70% 50%)`);
      else made.classList.add("dropped");
      return made;
    };
    const all = numbers(found.experts).map((name) => [
      `expert ${name}`, found.tokens.filter((one) => one.experts.includes(Number(name))).length,
    ]);
    all.push(["dropped", found.tokens.filter((one) => !one.experts.length).length]);
    const tokens = make("div", { class: "tokens" }, ...found.tokens.map(token));
    this.expertsBox.replaceChildren(
      make("div", { class: "controls" },
        pick("Side", found.sides, found.side, (one) => this.experts(one, 0)),
        pick("Layer", numbers(found.layers), String(layer), (n) => this.experts(found.side, Number(n)))),
      make("p", { class: "note", textContent: "A colour for each expert, whose number is beside the token; a dropped token skips the layer" }),
      tokens,
      make("p", { class: "counts", textContent: all.filter(([, count]) => count).map(([name, count]) => `${name}: ${count}`).join("; ") }),
      copies(found, tokens),
    );
  }

  // Asks for a word of the text, and for the texts in which it is looked for.
  askNeighbours() {
    const word = make("input", { class: "word", value: this.chosenWord(), size: 12 });
    const texts = make("textarea", { class: "texts", rows: 4, "aria-label": "Other texts, one on each line" });
    const found = make("div", {});
    const compare = (layer) => this.neighbours(word.value.trim(), texts.value.split("\n"), layer, found);
    this.neighboursBox.replaceChildren(
      make("p", { class: "note", textContent: "Other texts with the word, one on each line: first those that use it as the text above does" }),
      texts,
      make("div", { class: "controls" }, make("label", {}, "Word ", word),
        make("button", { type: "button", class: "compare", textContent: "Compare", onclick: () => shown(() => compare(null)) })),
      found,
    );
    texts.focus();
  }

  // The chosen token's word, else the last word of the text.
  chosenWord() {
    const chosen = this.body.querySelector(".token[aria-pressed='true']");
    const own = chosen ? chosen.textContent.match(/[\p{L}\p{N}]+/u) : null;
    const words = field.value.match(/[\p{L}\p{N}]+/gu) || [""];
    return own && words.includes(own[0]) ? own[0] : words.at(-1);
  }

  async neighbours(word, texts, layer, box) {
    const found = await ask("/api/neighbours", { model: this.number, word, text: field.value, texts, layer });
    const marked = ({ text, start, end }) => {
      const characters = Array.from(text); // the server counts characters, JavaScript half surrogate pairs
      const part = (from, to) => characters.slice(from, to).join("");
      return make("td", { class: "text" }, part(0, start), make("mark", { textContent: part(start, end) }), part(end));
    };
    const row = (one) => make("tr", {}, make("th", { textContent: one.cosine.toFixed(3) }), marked(one));
    const table = make("table", { class: "neighbours" }, make("tbody", {}, ...found.neighbours.map(row)));
    box.replaceChildren(
      make("div", { class: "controls" }, pick("Layer", numbers(found.layers), String(found.layer),
        (n) => this.neighbours(word, texts, Number(n), box))),
      make("p", { class: "note", textContent: `The cosine between the hidden states of the word here and there, after a layer; the mean of all is ${found.mean.toFixed(3)}` }),
      make("div", { class: "scroll", tabIndex: 0 }, table), copies(found, table),
    );
  }

  async lens() {
    const found = await ask("/api/lens", this.question({}));
    const cell = (one) => {
      const made = make("td", { title: percent(one.probability) }, ...readable(one.text));
      return shade(made, one.probability, "--answer");
    };
    const table = make("table", { class: "lens" },
      make("tbody", {}, ...found.layers.map((row, n) => make("tr", {},
        make("th", { textContent: n === 0 ? "input" : `layer ${n - 1}` }), ...row.map(cell))).reverse()),
      make("tfoot", {}, make("tr", {}, make("th", { textContent: "token" }),
        ...found.tokens.map((one) => make("td", {}, ...readable(one.text))))));
    this.lensBox.replaceChildren(
      make("p", { class: "note", textContent: "The likeliest token where the output layer reads each layer, the last layer at the top" }),
      legend("probability 0%", "100%", "--answer"), make("div", { class: "scroll", tabIndex: 0 }, table), copies(found, table),
    );
  }

  // The view that an example or a link opens, if the model has it.
  async open(view) {
    if (view === "attention") await this.attention("", 0, 0);
    if (view === "layers") await this.layers("");
    if (view === "lens" && this.about.lens) await this.lens();
    if (view === "experts" && this.about.routes) await this.experts("", 0);
  }
}

// Look at a text with all models; the address of the page then names the text and the view.
function lookAt(text, view = "") {
  field.value = text;
  history.replaceState(null, "", "#" + new URLSearchParams({ text, ...(view && { view }) }));
  return shown(async () => {
    for (const one of views) {
      await one.look({ text });
      await one.open(view);
    }
  });
}

// An example of each view, with the texts of the first model.
function showExamples() {
  const [first, second] = views[0].about.examples;
  const examples = [["Predictions", first, ""], ["Predictions", second, ""], ["Attention", second, "attention"], ["Layers", second, "layers"]];
  if (views.some((one) => one.about.lens)) examples.push(["Logit lens", first, "lens"]);
  if (views.some((one) => one.about.routes)) examples.push(["Experts", second, "experts"]);
  document.getElementById("examples").replaceChildren("Try ", ...examples.map(([name, text, view]) => make(
    "button", { type: "button", class: "example", textContent: `${name}: ${text}`, onclick: () => lookAt(text, view) },
  )));
}

// Look at the text that the address of the page names.
function fromLink() {
  const linked = new URLSearchParams(location.hash.slice(1));
  if (views.length && linked.has("text")) lookAt(linked.get("text"), linked.get("view") || "");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  lookAt(field.value);
});
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey) form.requestSubmit();
});
document.getElementById("link").addEventListener("click", () => shown(() => {
  const address = new URL(location.href);
  const view = new URLSearchParams(address.hash.slice(1)).get("view");
  address.hash = new URLSearchParams({ text: field.value, ...(view && { view }) });
  return copy({ "text/plain": new Blob([address.href], { type: "text/plain" }) });
}, "link copied"));
shown(async () => {
  (await ask("/api/about", {})).forEach((about, number) => views.push(new View(number, about)));
  columns.replaceChildren(...views.map((view) => view.element));
  document.title = `${views.map((view) => view.about.name).join(" and ")}: t5x_like`;
  document.getElementById("title").textContent = `Look at ${views.map((view) => view.about.name).join(" and ")}`;
  showExamples();
}).then(fromLink);
addEventListener("hashchange", fromLink);
