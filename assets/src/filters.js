// The builder of filters: rows of conditions that write the JSON of the field below them. The server
// responds to each change of that JSON with the fields of the event types, what is wrong, and what the
// filters would have sent (see web/filter_form.go).
import { added } from "./added.js";

const groups = { all: "all of these hold", any: "any of these holds" };
const ops = {
  eq: "is", ne: "is not", in: "is one of", not_in: "is none of", gt: "is more than", gte: "is at least", lt: "is less than",
  lte: "is at most", starts_with: "starts with", contains: "contains", exists: "is there",
};
const lists = (op) => op === "in" || op === "not_in";

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

function select(label, choices, chosen) {
  const all = Object.entries(choices);
  if (!(chosen in choices)) all.push([chosen, chosen]);
  return make("select", { "aria-label": label }, ...all.map(([value, text]) => new Option(text, value, false, value === chosen)));
}

// The JSON of a value is kept as text: numbers may be larger than those of JavaScript.
const tokens = (json) => json.match(/"(?:[^"\\]|\\.)*"|[^\s,[\]]+/g) ?? [];
const spoken = (json) => tokens(json).map((token) => token.startsWith('"') ? JSON.parse(token) : token).join(", ");

function scalar(text, kinds) {
  if (kinds.includes("number") && /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text)) return text;
  if (kinds.includes("boolean") && (text === "true" || text === "false")) return text;
  if (kinds.includes("null") && text === "null") return text;
  return JSON.stringify(text);
}

function valueOf(text, op, kinds) {
  if (!lists(op)) return scalar(text.trim(), kinds);
  return `[${text.split(",").map((one) => one.trim()).filter(Boolean).map((one) => scalar(one, kinds)).join(", ")}]`;
}

added("[data-filters]", (root) => {
  const field = root.querySelector("textarea");
  const place = root.querySelector("[data-filter-rows]");
  let filters = []; // {name, group, conditions: [{path, op, value}], json}
  let types = {}; // by name: {fields, open}
  let written; // the text that the rows stand for
  const type = (filter) => types[filter.name] ?? { fields: [], open: true };
  const fieldOf = (filter, row) => type(filter).fields.find((one) => one.path === row.path);
  const kindsOf = (filter, row) => fieldOf(filter, row)?.kinds ?? ["null", "boolean", "number", "string"];

  function write() {
    const texts = filters.map((filter) => {
      const rows = filter.conditions?.map((row) => `      {"path": ${JSON.stringify(row.path)}, "op": "${row.op}", "value": ${row.value}}`);
      const json = rows ? `{\n    "${filter.group}": [\n${rows.join(",\n")}\n    ]\n  }` : filter.json;
      return `  ${JSON.stringify(filter.name)}: ${json}`;
    });
    field.value = written = texts.length > 0 ? `{\n${texts.join(",\n")}\n}` : "";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // draw makes the rows again, and keeps the focus at the same control.
  function draw() {
    const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    place.replaceChildren(...filters.map(drawFilter), drawOffer());
    place.hidden = false;
    if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  function change(act) {
    act();
    write();
    draw();
  }

  function drawFilter(filter) {
    const set = make("fieldset", {}, make("legend", {}, make("code", { textContent: filter.name })));
    const drop = make("button", { type: "button", className: "action", textContent: "Remove filter", "data-key": `${filter.name} drop`,
      "aria-label": `Remove filter of ${filter.name}` });
    drop.addEventListener("click", () => change(() => { filters = filters.filter((one) => one !== filter); }));
    if (!filter.conditions) {
      set.append(make("p", { className: "hint", textContent: "This filter has groups of conditions. Edit it as JSON." }), drop);
      return set;
    }
    const group = select(`When an event of ${filter.name} is sent`, groups, filter.group);
    group.dataset.key = `${filter.name} group`;
    group.addEventListener("change", () => change(() => { filter.group = group.value; }));
    const add = make("button", { type: "button", className: "action", textContent: "Add condition", "data-key": `${filter.name} add`,
      "aria-label": `Add condition of ${filter.name}` });
    add.addEventListener("click", () => {
      change(() => filter.conditions.push(first(filter)));
      place.querySelector(`[data-key="${CSS.escape(`${filter.name} ${filter.conditions.length - 1} path`)}"]`)?.focus();
    });
    set.append(make("p", { className: "built-group" }, "Sent when ", group), ...filter.conditions.map((row, i) => drawRow(filter, row, i)),
      make("p", { className: "actions" }, add, drop));
    return set;
  }

  function drawRow(filter, row, i) {
    const at = `${filter.name}.${filter.group}[${i}]`;
    const name = (part) => `${part} of condition ${i + 1} of ${filter.name}`;
    const { fields, open } = type(filter);
    const known = Object.fromEntries(fields.map((one) => [one.path, one.path]));
    const path = open ? make("input", { value: row.path, "aria-label": name("Field"), autocomplete: "off", spellcheck: false }) : select(name("Field"), known, row.path);
    const op = select(name("Comparison"), Object.fromEntries((fieldOf(filter, row)?.ops ?? Object.keys(ops)).map((one) => [one, ops[one]])), row.op);
    const value = drawValue(filter, row, name("Value"));
    const drop = make("button", { type: "button", className: "action", textContent: "Remove", "aria-label": `Remove condition ${i + 1} of ${filter.name}` });
    for (const [part, control] of Object.entries({ path, op, value, drop })) control.dataset.key = `${filter.name} ${i} ${part}`;
    path.addEventListener("change", () => change(() => {
      row.path = path.value.trim();
      const allowed = fieldOf(filter, row)?.ops;
      if (allowed && !allowed.includes(row.op)) row.op = allowed[0];
      row.value = empty(filter, row);
    }));
    op.addEventListener("change", () => change(() => {
      const text = row.op === "exists" ? "" : spoken(row.value);
      row.op = op.value;
      row.value = text && row.op !== "exists" ? valueOf(text, row.op, kindsOf(filter, row)) : empty(filter, row);
    }));
    const take = () => {
      row.value = value.tagName === "SELECT" ? value.value : valueOf(value.value, row.op, kindsOf(filter, row));
      write();
    };
    value.addEventListener(value.tagName === "SELECT" ? "change" : "input", take);
    drop.addEventListener("click", () => change(() => {
      filter.conditions.splice(i, 1);
      if (filter.conditions.length === 0) filters = filters.filter((one) => one !== filter);
    }));
    return make("div", { className: "built-row", "data-filter-at": at }, path, op, value, drop);
  }

  function drawValue(filter, row, label) {
    const one = fieldOf(filter, row);
    if (row.op === "exists") return select(label, { true: "yes", false: "no" }, row.value);
    if (row.op === "eq" || row.op === "ne") {
      const values = one?.values ?? (one?.kinds.join() === "boolean" ? ["true", "false"] : undefined);
      if (values) return select(label, Object.fromEntries(values.map((json) => [json, spoken(json)])), row.value);
    }
    return make("input", { value: spoken(row.value), "aria-label": label, autocomplete: "off", spellcheck: false,
      placeholder: lists(row.op) ? "one, two" : "" });
  }

  // first is the condition that a new row has.
  function first(filter) {
    const { fields } = type(filter);
    const one = fields.find((each) => each.ops.includes("eq")) ?? fields[0];
    const row = { path: one?.path ?? "", op: one?.ops[0] ?? "eq" };
    return { ...row, value: empty(filter, row) };
  }

  function empty(filter, row) {
    if (row.op === "exists") return "true";
    if (lists(row.op)) return "[]";
    const one = fieldOf(filter, row);
    if (row.op === "eq" || row.op === "ne") {
      if (one?.values) return one.values[0];
      if (one?.kinds.join() === "boolean") return "true";
    }
    return '""';
  }

  function drawOffer() {
    const names = Object.keys(types).filter((name) => !filters.some((filter) => filter.name === name));
    if (names.length === 0) return "";
    const offer = select("Event to filter", { "": "Add a filter for…", ...Object.fromEntries(names.map((name) => [name, name])) }, "");
    offer.dataset.key = "offer";
    offer.addEventListener("change", () => {
      if (!offer.value) return;
      const filter = { name: offer.value, group: "all" };
      change(() => {
        filter.conditions = [first(filter)];
        filters.push(filter);
      });
      place.querySelector(`[data-key="${CSS.escape(`${filter.name} 0 path`)}"]`)?.focus();
    });
    return make("p", {}, offer);
  }

  // showFaults moves what is wrong with a condition into its row.
  function showFaults() {
    place.querySelectorAll(".fault").forEach((fault) => fault.remove());
    place.querySelectorAll("[aria-invalid]").forEach((control) => {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-describedby");
    });
    root.querySelectorAll("[data-filter-fault]").forEach((fault, n) => {
      const at = fault.dataset.filterFault;
      const row = [...place.querySelectorAll("[data-filter-at]")].find((one) => at.startsWith(`${one.dataset.filterAt}.`));
      if (!row) return;
      const part = at.slice(row.dataset.filterAt.length + 1).match(/^[a-z]+/)?.[0];
      fault.id = `filter-fault-${n}`;
      fault.querySelector("span").textContent = fault.querySelector("span").textContent.slice(at.length + 1);
      row.append(fault);
      const control = row.querySelector(`[data-key$=" ${part}"]`);
      control?.setAttribute("aria-invalid", "true");
      control?.setAttribute("aria-describedby", fault.id);
    });
  }

  added("[data-filter-model]", (element) => {
    const model = JSON.parse(element.dataset.filterModel);
    const before = JSON.stringify(types);
    types = model.types;
    const now = field.value.trim();
    if (model.text !== now) return; // the response to a newer text follows
    if (now !== written) {
      written = now;
      filters = model.filters ?? [];
      if (model.filters) draw();
      else place.hidden = true; // the text is no JSON of filters
    } else if (JSON.stringify(types) !== before) {
      draw();
    }
    showFaults();
  });
  root.querySelector("[data-filter-test]").hidden = true;
});
