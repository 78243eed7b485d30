// Progressive enhancement of the admin pages. Every page works without JavaScript.
import "../vendor/htmx.esm.min.js";
import "../vendor/hx-sse.min.js";
import "./chart.js";
import "./copy.js";
import "./filters.js";
import "./find.js";
import "./form.js";
import "./keys.js";
import "./live.js";
import "./passkey.js";
import "./picker.js";
import "./refresh.js";
import "./ticks.js";
import "./time.js";
