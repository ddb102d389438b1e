// node provider.mjs SETTINGS: an OpenID Connect provider on loopback, for tests. SETTINGS is JSON: ``port`` (0: any), ``redirect``, ``groups`` of each
// user, ``in_token`` (whether claims are in the ID token, or at the userinfo endpoint only). Prints its issuer when it serves. Keys are new at each start.

import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import Provider from "oidc-provider";

const settings = JSON.parse(process.argv[2]);
const server = createServer();
server.listen(settings.port, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  const client = {
    redirect_uris: [settings.redirect],
    post_logout_redirect_uris: [settings.redirect],
    grant_types: ["authorization_code"],
    response_types: ["code"],
  };
  const provider = new Provider(issuer, {
    clients: [
      { ...client, client_id: "broker", client_secret: "secret+/% of the test" },
      { ...client, client_id: "public", token_endpoint_auth_method: "none" },
    ],
    claims: { openid: ["sub"], profile: ["preferred_username", "groups"] },
    conformIdTokenClaims: !settings.in_token,
    cookies: { keys: [randomUUID()] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, preferred_username: id, groups: settings.groups[id] }),
    }),
    jwks: { keys: [{ ...privateKey.export({ format: "jwk" }), kid: randomUUID(), use: "sig", alg: "RS256" }] },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
