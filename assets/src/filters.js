// The filter builder: rows of conditions that write the JSON of the field below them. The server
// responds to each change of that JSON with the fields of the event types, the errors, and what the
// filters would have sent (see web/filter_form.go).
import { added } from "./added.js";

const groups = { all: "all of these hold", any: "any of these holds" };
const ops = {
  eq: "is", ne: "is not", in: "is one of", not_in: "is none of", gt: "is more than", gte: "is at least", lt: "is less than",
  lte: "is at most", starts_with: "starts with", contains: "contains", exists: "is there",
};
const lists = (op) => op === "in" || op === "not_in";
const pause = 300; // ms without a change before a request to the server

// make returns an element with properties, attributes that have a hyphen, and children.
function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

function button(text, label, key, act) {
  const element = make("button", { type: "button", className: "action", textContent: text, "aria-label": label, "data-key": key });
  element.addEventListener("click", act);
  return element;
}

function select(label, choices, chosen) {
  const all = Object.entries(choices);
  if (!Object.hasOwn(choices, chosen)) all.push([chosen, chosen]);
  return make("select", { "aria-label": label }, ...all.map(([value, text]) => new Option(text, value, false, value === chosen)));
}

// Values are kept as the text of their JSON: numbers may be larger than those of JavaScript.
const tokens = (json) => json.match(/"(?:[^"\\]|\\.)*"|[^\s,[\]]+/g) ?? [];

// tokenOf returns the JSON of a typed value. In quotation marks it is always a string.
function tokenOf(text, kinds) {
  if (/^".*"$/.test(text)) {
    try {
      return JSON.stringify(JSON.parse(text));
    } catch { /* a string that has quotation marks */ }
  }
  if (kinds.includes("number") && /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text)) return text;
  if (kinds.includes("boolean") && (text === "true" || text === "false")) return text;
  if (kinds.includes("null") && text === "null") return text;
  return JSON.stringify(text);
}

const split = (text, op) => lists(op) ? (text.match(/"(?:[^"\\]|\\.)*"|[^,]+/g) ?? []).map((one) => one.trim()).filter(Boolean) : [text.trim()];

function valueOf(text, op, kinds) {
  const all = split(text, op).map((one) => tokenOf(one, kinds));
  return lists(op) ? `[${all.join(", ")}]` : all[0];
}

// shown returns what to type for a value: without quotation marks if that is read as the same
// value.
function shown(json, op, kinds) {
  return tokens(json).map((token) => {
    const text = token.startsWith('"') ? JSON.parse(token) : token;
    const again = split(text, op);
    return again.length === 1 && tokenOf(again[0], kinds) === token ? text : token;
  }).join(", ");
}

added("[data-filters]", (root) => {
  const field = root.querySelector("textarea");
  const place = root.querySelector("[data-filter-rows]");
  const look = root.querySelector("[data-filter-look]");
  let filters = []; // {name, group, conditions: [{path, op, value}], json}
  let types = new Map(); // by name: {fields, open}
  let written; // the text that the rows represent
  const type = (filter) => types.get(filter.name) ?? { fields: [], open: true };
  const fieldOf = (filter, row) => type(filter).fields.find((one) => one.path === row.path);
  const kindsOf = (filter, row) => row.op === "starts_with" ? ["string"] : fieldOf(filter, row)?.kinds ?? ["null", "boolean", "number", "string"];
  const at = (key) => place.querySelector(`[data-key="${CSS.escape(key)}"]`);

  function write() {
    const texts = filters.map((filter) => {
      const rows = filter.conditions?.map((row) => `      {"path": ${JSON.stringify(row.path)}, "op": "${row.op}", "value": ${row.value}}`);
      const json = rows ? `{\n    "${filter.group}": [\n${rows.join(",\n")}\n    ]\n  }` : filter.json;
      return `  ${JSON.stringify(filter.name)}: ${json}`;
    });
    field.value = written = texts.length > 0 ? `{\n${texts.join(",\n")}\n}` : "";
    askSoon();
  }

  // draw redraws the rows. The focus stays on the same control, or goes to the nearest.
  function draw() {
    const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    place.replaceChildren(...filters.map(drawFilter), drawOffer());
    place.hidden = false;
    if (focused) (at(focused) ?? at(focused.replace(/ (\d+ )?[a-z]+$/, " add")) ?? at("offer"))?.focus();
  }

  function change(act) {
    act();
    write();
    draw();
  }

  function drawFilter(filter) {
    const known = make("datalist", { id: `fields-of-${filter.name}` }, ...type(filter).fields.map((one) => new Option(one.path)));
    const set = make("fieldset", {}, make("legend", {}, make("code", { textContent: filter.name })), known);
    const drop = button("Remove filter", `Remove filter of ${filter.name}`, `${filter.name} remove`,
      () => change(() => { filters = filters.filter((one) => one !== filter); }));
    if (!filter.conditions) {
      set.append(make("p", { className: "hint", textContent: "This filter has groups of conditions. Edit it as JSON." }), make("p", {}, drop));
      return set;
    }
    const group = select(`When an event of ${filter.name} is sent`, groups, filter.group);
    group.dataset.key = `${filter.name} group`;
    group.addEventListener("change", () => change(() => { filter.group = group.value; }));
    const add = button("Add condition", `Add condition of ${filter.name}`, `${filter.name} add`, () => {
      change(() => filter.conditions.push(first(filter)));
      at(`${filter.name} ${filter.conditions.length - 1} path`)?.focus();
    });
    set.append(make("p", {}, "Sent when ", group), ...filter.conditions.map((row, i) => drawRow(filter, row, i)),
      make("p", { className: "actions" }, add, drop));
    return set;
  }

  function drawRow(filter, row, i) {
    const name = (part) => `${part} of condition ${i + 1} of ${filter.name}`;
    const { fields, open } = type(filter);
    const path = open ? make("input", { value: row.path, "aria-label": name("Field"), autocomplete: "off", spellcheck: false })
      : select(name("Field"), Object.fromEntries(fields.map((one) => [one.path, one.path])), row.path);
    const drop = button("Remove", `Remove condition ${i + 1} of ${filter.name}`, `${filter.name} ${i} drop`, () => change(() => {
      filter.conditions.splice(i, 1);
      if (filter.conditions.length === 0) filters = filters.filter((one) => one !== filter);
    }));
    path.dataset.key = `${filter.name} ${i} path`;
    if (open) path.setAttribute("list", `fields-of-${filter.name}`);
    const element = make("div", { className: "built-row", "data-filter-at": `${filter.name}.${filter.group}[${i}]` }, path,
      ...drawComparison(filter, row, i, name), drop);
    path.addEventListener("change", () => {
      row.path = path.value.trim();
      const allowed = fieldOf(filter, row)?.ops;
      if (allowed && !allowed.includes(row.op)) row.op = allowed[0];
      row.value = empty(filter, row);
      write();
      setTimeout(() => { // the focus may be on its way to the next control
        const focused = document.activeElement.dataset?.key;
        const [op, value] = drawComparison(filter, row, i, name);
        element.children[1].replaceWith(op);
        element.children[2].replaceWith(value);
        if (focused) at(focused)?.focus();
      });
    });
    return element;
  }

  // drawComparison returns the controls for a condition's operation and value.
  function drawComparison(filter, row, i, name) {
    const op = select(name("Comparison"), Object.fromEntries((fieldOf(filter, row)?.ops ?? Object.keys(ops)).map((one) => [one, ops[one]])), row.op);
    const value = drawValue(filter, row, name("Value"));
    op.dataset.key = `${filter.name} ${i} op`;
    value.dataset.key = `${filter.name} ${i} value`;
    op.addEventListener("change", () => change(() => {
      let kept = row.op === "exists" ? [] : tokens(row.value);
      row.op = op.value;
      if (row.op === "starts_with") kept = kept.map((token) => token.startsWith('"') ? token : JSON.stringify(token));
      row.value = row.op === "exists" || kept.length === 0 ? empty(filter, row) : lists(row.op) ? `[${kept.join(", ")}]` : kept[0];
    }));
    const chosen = value.tagName === "SELECT";
    value.addEventListener(chosen ? "change" : "input", () => {
      row.value = chosen ? value.value : valueOf(value.value, row.op, kindsOf(filter, row));
      write();
    });
    return [op, value];
  }

  function drawValue(filter, row, label) {
    if (row.op === "exists") return select(label, { true: "yes", false: "no" }, row.value);
    const values = choicesOf(filter, row);
    if (values) return select(label, Object.fromEntries(values.map((json) => [json, shown(json, row.op, kindsOf(filter, row))])), row.value);
    return make("input", { value: shown(row.value, row.op, kindsOf(filter, row)), "aria-label": label, autocomplete: "off", spellcheck: false,
      placeholder: lists(row.op) ? "one, two" : "" });
  }

  // choicesOf returns the values that a condition may choose from, if its type lists them.
  function choicesOf(filter, row) {
    if (row.op !== "eq" && row.op !== "ne") return undefined;
    const one = fieldOf(filter, row);
    return one?.values ?? (one?.kinds.join() === "boolean" ? ["true", "false"] : undefined);
  }

  // first returns the condition of a new row.
  function first(filter) {
    const { fields } = type(filter);
    const one = fields.find((each) => each.ops.includes("eq")) ?? fields[0];
    const row = { path: one?.path ?? "", op: one?.ops[0] ?? "eq" };
    return { ...row, value: empty(filter, row) };
  }

  function empty(filter, row) {
    if (row.op === "exists") return "true";
    return choicesOf(filter, row)?.[0] ?? (lists(row.op) ? "[]" : '""');
  }

  function drawOffer() {
    const names = [...types.keys()].filter((name) => !filters.some((filter) => filter.name === name));
    if (names.length === 0) return "";
    const offer = select("Event to filter", Object.fromEntries(names.map((name) => [name, name])), names[0]);
    offer.dataset.key = "offer";
    return make("p", { className: "actions" }, offer, button("Add filter", "Add filter", "offer add", () => {
      const filter = { name: offer.value, group: "all" };
      change(() => {
        filter.conditions = [first(filter)];
        filters.push(filter);
      });
      at(`${filter.name} 0 path`)?.focus();
    }));
  }

  // showFaults moves the errors of a condition into its row.
  function showFaults() {
    place.querySelectorAll(".fault").forEach((fault) => fault.remove());
    place.querySelectorAll("[aria-invalid]").forEach((control) => {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-describedby");
    });
    root.querySelectorAll("[data-filter-fault]").forEach((fault, n) => {
      const where = fault.dataset.filterFault;
      const row = [...place.querySelectorAll("[data-filter-at]")].find((one) => where.startsWith(`${one.dataset.filterAt}.`));
      if (!row) return;
      const part = where.slice(row.dataset.filterAt.length + 1).match(/^[a-z]+/)?.[0];
      fault.id = `filter-fault-${n}`;
      fault.querySelector("span").textContent = fault.querySelector("span").textContent.slice(where.length + 1);
      row.append(fault);
      const control = row.querySelector(`[data-key$=" ${part}"]`);
      control?.setAttribute("aria-invalid", "true");
      control?.setAttribute("aria-describedby", fault.id);
    });
  }

  // take shows the server's response to the current text.
  function take(model) {
    const before = JSON.stringify([...types]);
    types = new Map(Object.entries(model.types));
    const now = field.value.trim();
    if (now !== written) {
      written = now;
      filters = model.filters ?? [];
      if (model.filters) draw();
      else place.hidden = true; // rows would lose what they cannot represent
    } else if (JSON.stringify([...types]) !== before) {
      draw();
    }
    place.inert = false;
    showFaults();
  }

  let timer;
  let asking;
  function askSoon() {
    clearTimeout(timer);
    timer = setTimeout(ask, pause);
  }

  // ask sends the filters, without the other fields of the form: some are secret.
  async function ask() {
    clearTimeout(timer);
    asking?.abort();
    const { signal } = asking = new AbortController();
    const text = field.value;
    const body = new URLSearchParams({ filters: text });
    for (const box of field.form.querySelectorAll("[name=events]:checked")) body.append("events", box.value);
    const program = field.form.elements.namedItem("for_program");
    if (program) body.set("for_program", program.value);
    try {
      const response = await fetch(look.dataset.filterLook, { method: "POST", body, signal });
      if (!response.ok) throw new Error(response.statusText);
      const content = await response.text();
      if (field.value !== text) return; // another request follows
      look.innerHTML = content;
      take(JSON.parse(look.querySelector("[data-filter-model]").dataset.filterModel));
    } catch {
      if (!signal.aborted) look.replaceChildren(make("p", { className: "quiet", role: "status", textContent: "The filters could not be tested. Change them to try again." }));
    }
  }

  field.addEventListener("input", () => {
    place.inert = true; // until the rows represent this text
    askSoon();
  });
  field.form.querySelector("#events").addEventListener("change", askSoon);
  field.form.elements.namedItem("for_program")?.addEventListener("change", askSoon);
  const fold = root.closest("details");
  fold.addEventListener("toggle", () => { if (written === undefined) ask(); });
  if (fold.open) ask();
  field.form.querySelector("[data-filter-test]").hidden = true;
});
