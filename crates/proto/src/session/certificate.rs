//! Certificates: the right to move a session to a cooperating server.
//!
//! A certificate names the session, the service and the time of its expiry, and is signed with the key that the cooperating servers share. It
//! is worth nothing without the session's secret, which only the proxy of the session's client gets. For each link, the server draws a
//! challenge. The proxy's proof depends on the secret, the challenge and the epoch, so it is of no use on another link.

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// A session's name. The server that opens the session draws it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub [u8; 16]);

/// Random bytes that a server draws for each link.
pub type Challenge = [u8; 32];

/// Maximum number of bytes of a service's name.
pub const SESSION_SERVICE_MAX: usize = 64;

/// Purposes of a signature over a certificate's contents.
const SIGNS: u8 = 0;
const DERIVES: u8 = 1;
/// First bytes of what a proof signs.
const SERVER: &[u8] = b"server";
const PROOF: &[u8] = b"proof";

/// The right to move a session. Shown to servers, and no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The session.
    pub session: SessionId,
    /// The name of the session's service.
    pub service: String,
    /// The time of expiry, in seconds since 1970.
    pub expires: u64,
    tag: [u8; 32],
}

/// What only the proxy of the session's client has.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSecret([u8; 32]);

impl std::fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionSecret(…)")
    }
}

/// The proof that the presenter of a certificate has the session's secret.
pub type CertificateProof = [u8; 32];

/// Why a certificate gives no right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// The signature is wrong.
    #[error("the certificate is not signed with the key of the cooperating servers")]
    Forged,
    /// It is for another service.
    #[error("the certificate is for another service")]
    OtherService,
    /// Its time is over.
    #[error("the certificate has expired")]
    Expired,
    /// The presenter does not have the session's secret, or repeats the proof of another link.
    #[error("the presenter of the certificate does not have the session's secret")]
    NotProven,
}

/// The key that the cooperating servers share.
#[derive(Clone)]
pub struct CertificateKey([u8; 32]);

impl CertificateKey {
    /// The key with these bytes.
    pub const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Signs a certificate, and derives the secret that goes with it.
    pub fn issue(&self, session: SessionId, service: &str, expires: u64) -> (Certificate, SessionSecret) {
        let mut certificate = Certificate {
            session,
            service: service.to_owned(),
            expires,
            tag: [0; 32],
        };
        certificate.tag = self.mac(SIGNS, &certificate).finalize().into_bytes().into();
        let secret = self.secret(&certificate);
        (certificate, secret)
    }

    /// Checks a certificate that was presented on a link with this challenge, to move its session to `service` at `epoch`. `now` is the time
    /// in seconds since 1970.
    ///
    /// # Errors
    /// Why the certificate gives no right.
    pub fn check(
        &self,
        certificate: &Certificate,
        proof: &CertificateProof,
        link: (&Challenge, u64),
        service: &str,
        now: u64,
    ) -> Result<(), CertificateFault> {
        if self
            .mac(SIGNS, certificate)
            .verify_slice(&certificate.tag)
            .is_err()
        {
            return Err(CertificateFault::Forged);
        }
        if certificate.service != service {
            return Err(CertificateFault::OtherService);
        }
        if now >= certificate.expires {
            return Err(CertificateFault::Expired);
        }
        let (challenge, epoch) = link;
        let expected = self.secret(certificate).keyed(challenge, epoch);
        expected
            .verify_slice(proof)
            .map_err(|_| CertificateFault::NotProven)
    }

    /// The proof of a cooperating server on a link with this challenge.
    pub fn server_proof(&self, challenge: &Challenge) -> CertificateProof {
        let mut mac = keyed(&self.0);
        mac.update(SERVER);
        mac.update(challenge);
        mac.finalize().into_bytes().into()
    }

    /// Whether a cooperating server has made this proof.
    pub fn proves_server(&self, challenge: &Challenge, proof: &CertificateProof) -> bool {
        let mut mac = keyed(&self.0);
        mac.update(SERVER);
        mac.update(challenge);
        mac.verify_slice(proof).is_ok()
    }

    fn secret(&self, certificate: &Certificate) -> SessionSecret {
        SessionSecret(self.mac(DERIVES, certificate).finalize().into_bytes().into())
    }

    /// A signature of the certificate's contents. The service's name comes last, because only it has no fixed length.
    fn mac(&self, purpose: u8, certificate: &Certificate) -> Hmac<Sha256> {
        let mut mac = keyed(&self.0);
        mac.update(&[purpose]);
        mac.update(&certificate.session.0);
        mac.update(&certificate.expires.to_be_bytes());
        mac.update(certificate.service.as_bytes());
        mac
    }
}

impl SessionSecret {
    /// The proof for a link with this challenge: the session is to move to the link's server at `epoch`.
    pub fn prove(&self, challenge: &Challenge, epoch: u64) -> CertificateProof {
        self.keyed(challenge, epoch).finalize().into_bytes().into()
    }

    fn keyed(&self, challenge: &Challenge, epoch: u64) -> Hmac<Sha256> {
        let mut mac = keyed(&self.0);
        mac.update(PROOF);
        mac.update(challenge);
        mac.update(&epoch.to_be_bytes());
        mac
    }
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([7; 16]);
    const CHALLENGE: Challenge = [1; 32];

    #[test]
    fn a_certificate_gives_its_right_to_the_session_only() {
        let key = CertificateKey::new([9; 32]);
        let (certificate, secret) = key.issue(SESSION, "web", 1000);
        let proof = secret.prove(&CHALLENGE, 2);
        let check =
            |certificate: &Certificate, proof, link, now| key.check(certificate, proof, link, "web", now);
        assert_eq!(check(&certificate, &proof, (&CHALLENGE, 2), 999), Ok(()));
        assert_eq!(
            check(&certificate, &proof, (&CHALLENGE, 2), 1000),
            Err(CertificateFault::Expired)
        );
        let other_service = key.check(&certificate, &proof, (&CHALLENGE, 2), "mail", 0);
        assert_eq!(other_service, Err(CertificateFault::OtherService));
        let (other, _) = key.issue(SessionId([8; 16]), "web", 1000);
        assert_eq!(
            check(&other, &proof, (&CHALLENGE, 2), 0),
            Err(CertificateFault::NotProven),
            "another session's"
        );
    }

    #[test]
    fn a_replayed_or_stolen_certificate_is_useless() {
        let key = CertificateKey::new([9; 32]);
        let (certificate, secret) = key.issue(SESSION, "web", 1000);
        let proof = secret.prove(&CHALLENGE, 2);
        for (challenge, epoch) in [([2; 32], 2), (CHALLENGE, 3)] {
            let replayed = key.check(&certificate, &proof, (&challenge, epoch), "web", 0);
            assert_eq!(replayed, Err(CertificateFault::NotProven));
        }
        let stolen = key.check(&certificate, &[0; 32], (&CHALLENGE, 2), "web", 0);
        assert_eq!(stolen, Err(CertificateFault::NotProven));
    }

    #[test]
    fn a_changed_certificate_is_forged() {
        let key = CertificateKey::new([9; 32]);
        let (certificate, secret) = key.issue(SESSION, "web", 1000);
        let proof = secret.prove(&CHALLENGE, 2);
        let mut later = certificate.clone();
        later.expires += 1;
        let mut other = certificate.clone();
        other.session.0[0] ^= 1;
        let mut renamed = certificate;
        renamed.service = "mail".into();
        for forged in [later, other, renamed] {
            let outcome = key.check(&forged, &proof, (&CHALLENGE, 2), &forged.service, 0);
            assert_eq!(outcome, Err(CertificateFault::Forged), "{forged:?}");
        }
    }

    #[test]
    fn servers_know_each_other_by_the_key() {
        let (key, other) = (CertificateKey::new([9; 32]), CertificateKey::new([8; 32]));
        let proof = key.server_proof(&CHALLENGE);
        assert!(key.proves_server(&CHALLENGE, &proof));
        assert!(!key.proves_server(&[2; 32], &proof) && !other.proves_server(&CHALLENGE, &proof));
    }
}
