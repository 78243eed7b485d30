// serve
// and without JavaScript
// An owner invites a viewer by a link, changes the role and ends the session of
// another admin, and removes one. A role applies to the next page of a browser that
// is signed in; no page offers what it does not allow.
import { admin, base, check, done, follow, fresh, looks, script, signedIn, visit } from "./lib.mjs";

const expected = ["the server responded with a status of 4"]; // pages that say what is wrong
const { page: owner } = await signedIn({}, expected);
const password = "another horse battery staple";

// press presses a button and waits for the page that follows.
const press = (page, name) => follow(page, () => page.getByRole("button", { name, exact: true }).first().click());

// The invitation: its link is shown once.
await visit(owner, "/admins");
await looks(owner);
await follow(owner, () => owner.getByRole("link", { name: "Invite admin" }).click());
await looks(owner);
await owner.fill("#email", "bo@example.com");
check(await owner.locator("#role").inputValue() === "viewer", "the least role is chosen at first");
await press(owner, "Create invitation");
const link = new URL(await owner.getByLabel("Link", { exact: true }).textContent());
check(link.origin === base && /^\/invitation\/[\w-]{43}$/.test(link.pathname), `the link of an invitation: ${link}`);
check(await owner.getByRole("button", { name: "Copy the link" }).count() === (script ? 1 : 0), "a button that copies the link");
await looks(owner);
await visit(owner, "/admins");
check(!(await owner.content()).includes(link.pathname), "the link is shown once");
check(await owner.getByText("bo@example.com").first().isVisible(), "the invitation is in the list");
await looks(owner);

// Who only looks at the link, such as the preview of a chat, does not use it up.
const { page: bo } = await fresh({}, expected);
for (let n = 0; n < 3; n++) check((await bo.request.get(link.href)).status() === 200, "looking at the link");
await visit(bo, link.pathname);
check(!(await bo.content()).includes("bo@example.com"), "the first page tells nothing");
await looks(bo);
await press(bo, "Continue");
check(await bo.getByText("bo@example.com").first().isVisible(), "the address is fixed");
await looks(bo);
await bo.fill("#password", password);
await bo.fill("#again", `${password}!`);
await press(bo, "Create admin and sign in");
await looks(bo);
await bo.fill("#password", password);
await bo.fill("#again", password);
await press(bo, "Create admin and sign in");
check(new URL(bo.url()).pathname === "/", `signed in, at ${bo.url()}`);
const stranger = (await fresh({}, expected)).page;
await visit(stranger, link.pathname, 404);
await looks(stranger);

// A viewer is offered nothing that changes something, and is refused what was not offered.
for (const to of ["/", "/subscriptions", "/deliveries", "/events", "/event-types/content_published", "/tokens", "/alerts", "/admins", "/audit", "/system"]) {
  await visit(bo, to);
  const forms = await bo.locator("main form[method=post]").evaluateAll((all) => all.map((f) => f.getAttribute("action")));
  check(forms.length === 0, `${to} offers a viewer ${forms}`);
}
check(await bo.getByRole("link", { name: "Invite admin" }).count() === 0, "a viewer invites nobody");
await visit(bo, "/tokens/new", 403);
check(await bo.getByText("This needs the role owner. You are signed in as bo@example.com with the role viewer.").isVisible(), "the page says why");
await looks(bo);

// Another role applies at once.
await visit(owner, "/admins");
await follow(owner, () => owner.getByRole("link", { name: "bo@example.com" }).click());
const at = new URL(owner.url()).pathname;
await looks(owner);
await owner.selectOption("#role", "operator");
await press(owner, "Change role");
check(await owner.getByText("bo@example.com now has the role operator.").isVisible(), "the role has changed");
await visit(bo, "/events/publish");
await visit(bo, "/tokens/new", 403);
await visit(bo, "/account");
check(await bo.getByText("with the role operator").isVisible(), "the account says the role");

// The last owner stays one.
await visit(owner, "/admins");
await follow(owner, () => owner.getByRole("link", { name: admin.email }).click());
check(await owner.getByText("is the last owner").isVisible(), "the last owner is said to be one");
check(await owner.getByRole("link", { name: "Remove" }).count() === 0, "and cannot be removed");
await visit(owner, `${new URL(owner.url()).pathname}/remove`);
await looks(owner);

// Sessions of another admin end, and so does the admin.
await visit(owner, at);
await press(owner, "End all sessions");
check(await owner.getByText("Ended 1 session of bo@example.com.").isVisible(), "the session has ended");
await visit(bo, "/", 401);
await follow(owner, () => owner.getByRole("link", { name: "Remove" }).click());
await looks(owner);
await press(owner, "Remove admin");
check(await owner.getByText("Removed bo@example.com.").isVisible(), "the admin is removed");
await bo.fill("#email", "bo@example.com");
await bo.fill("#password", password);
await press(bo, "Sign in");
check(await bo.getByText("Wrong email or password.").isVisible(), "who was removed cannot sign in");
await visit(owner, "/audit");
for (const what of ["Invite admin", "Change role of admin", "Sign out", "Remove admin"]) check(await owner.locator("[data-row]", { hasText: what }).count() > 0, `${what} is in the audit log`);
await done();
