// What the pages can do beyond links and forms. Nothing here is needed: each
// part adds to something that works without it.
import "../vendor/htmx.esm.min.js";
import "../vendor/hx-sse.min.js";
import "./chart.js";
import "./copy.js";
import "./find.js";
import "./form.js";
import "./keys.js";
import "./live.js";
import "./picker.js";
import "./refresh.js";
import "./ticks.js";
import "./time.js";
