-- Who an admin is at an OpenID Connect provider. An admin with an identity may have no
-- password, which is stored as ''.
ALTER TABLE admins ADD COLUMN oidc_issuer TEXT CHECK (length(oidc_issuer) > 0);
ALTER TABLE admins ADD COLUMN oidc_subject TEXT
    CHECK (length(oidc_subject) > 0 AND oidc_issuer IS NOT NULL OR oidc_subject IS NULL AND oidc_issuer IS NULL);
CREATE UNIQUE INDEX admins_by_identity ON admins (oidc_issuer, oidc_subject) WHERE oidc_subject IS NOT NULL;
