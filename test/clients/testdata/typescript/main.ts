// Uses the types that openapi-typescript generates from the OpenAPI document, with
// fetch. It exits with the first error.
import type { components, operations } from "./api";

type Schemas = components["schemas"];

const url = process.env.URL!;

async function call<T>(method: string, path: string, body?: unknown, token = process.env.TOKEN): Promise<{ status: number; body: T }> {
  const response = await fetch(url + path, {
    method,
    headers: { Authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return { status: response.status, body: (await response.json()) as T };
}

function want(what: string, ok: boolean, got: unknown): asserts ok {
  if (!ok) throw new Error(`${what}: ${JSON.stringify(got)}`);
}

const create: Schemas["NewSubscription"] = { url: process.env.RECEIVER!, events: [{ name: "content_published" }] };
type Created = operations["createSubscription"]["responses"][201]["content"]["application/json"];
const created = await call<Created>("POST", "/v2/webhooks/subscriptions", create);
const sub = created.body.data;
want("create", created.status === 201 && sub.url === create.url && sub.signing_secret !== undefined, created);

type Pinged = operations["pingSubscription"]["responses"][200]["content"]["application/json"];
const ping = await call<Pinged>("POST", `/v2/webhooks/subscriptions/${sub.id}/ping`);
want("ping", ping.status === 200 && ping.body.data.delivery.status === "success" && ping.body.data.delivery.response_status === 204, ping);

type Deliveries = operations["listDeliveries"];
const query: NonNullable<Deliveries["parameters"]["query"]> = { "page[size]": 10, "filter[status]": ["success"] };
const listed = await call<Deliveries["responses"][200]["content"]["application/json"]>(
  "GET",
  `/v2/webhooks/subscriptions/${sub.id}/deliveries?` + new URLSearchParams(Object.entries(query).map(([k, v]) => [k, String(v)])),
);
const old: Schemas["Delivery"] = listed.body.data[0];
want("list", listed.status === 200 && old.status === "success" && listed.body.meta.pagination.next === null, listed);

type Redelivered = operations["redeliver"]["responses"][201]["content"]["application/json"];
const again = await call<Redelivered>("POST", `/v2/webhooks/subscriptions/${sub.id}/deliveries/${old.id}/redeliver`);
want("redeliver", again.status === 201 && again.body.data.redelivery_of === old.id, again);

type Incidents = operations["listIncidents"]["responses"][200]["content"]["application/json"];
const incidents = await call<Incidents>("GET", "/v2/incidents?filter[status]=open");
want("incidents", incidents.status === 200 && incidents.body.data.length === 0, incidents);

const missing = await call<Schemas["Error"]>("GET", "/v2/webhooks/subscriptions/none");
want("a subscription that is not there", missing.status === 404 && missing.body.error.code === 404, missing);

const fields: Schemas["ProgramFields"] = { name: "Customer", limits: { rate_limit: 10 } };
type Program = operations["putProgram"]["responses"][201]["content"]["application/json"];
const program = await call<Program>("PUT", "/v2/programs/customer", fields, process.env.PLATFORM_TOKEN);
want("program", program.status === 201 && program.body.data.limits.rate_limit === 10 && program.body.data.statistics.tokens === 0, program);
const wanted: Schemas["NewToken"] = { user_id: "backend", scopes: ["events.write"] };
type Token = operations["createToken"]["responses"][201]["content"]["application/json"];
const token = await call<Token>("POST", "/v2/programs/customer/tokens", wanted, process.env.PLATFORM_TOKEN);
want("token", token.status === 201 && token.body.data.secret !== undefined && token.body.data.program_id === "customer", token.status);
type Audit = operations["listAudit"]["responses"][200]["content"]["application/json"];
const audit = await call<Audit>("GET", "/v2/audit?filter[program_id]=customer", undefined, process.env.PLATFORM_TOKEN);
want("audit log", audit.status === 200 && audit.body.data.length > 0 && audit.body.data[0].hash.length === 64, audit.status);

const delivery: Schemas["DeliveryBody"] = JSON.parse(process.env.DELIVERY!);
for (const event of delivery.events) {
  want("a delivery", event.name === "content_published" && event.content_id === 48211, event);
}

// The details of a notification have the type of a category.
const details: Schemas["event_user_notification_created"]["details"] = { like_count: 1, content_id: 48211, acting_user_ids: [7] };
want("details", "like_count" in details && details.like_count === 1, details);

console.log("all as it should be");
