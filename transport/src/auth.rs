//! Bearer tokens (RFC 6750).

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, Request, header};
use axum::response::{IntoResponse as _, Response};
use leasehold_protocol::{Problem, ProblemKind};
use subtle::ConstantTimeEq as _;
use tower::{Layer, Service};

use crate::problem::ProblemResponse;
use crate::secret::Secret;

/// A layer that lets a request pass only if it carries `token`; `None` lets all pass. 401 otherwise.
pub fn require_token(token: Option<Secret>) -> RequireToken {
    RequireToken(token.map(Arc::new))
}

/// See [`require_token`].
#[derive(Debug, Clone)]
pub struct RequireToken(Option<Arc<Secret>>);

impl<S> Layer<S> for RequireToken {
    type Service = Guarded<S>;
    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, token: self.0.clone() }
    }
}

/// A service behind a token.
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    inner: S,
    token: Option<Arc<Secret>>,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response, Error = Infallible> + Send,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let passes = self.token.as_ref().is_none_or(|token| carries(&request, token));
        if passes { Box::pin(self.inner.call(request)) } else { Box::pin(async { Ok(refusal()) }) }
    }
}

/// True if the request carries `token`. Takes the same time for each wrong token of the same length.
fn carries(request: &Request<Body>, token: &Secret) -> bool {
    let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let Some((scheme, given)) = given.and_then(|v| v.split_at_checked(7)) else { return false };
    scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.ct_eq(token.expose().as_bytes()))
}

fn refusal() -> Response {
    let detail = "send `Authorization: Bearer <admin token>`";
    let mut response = ProblemResponse(Problem::new(ProblemKind::Unauthorized, detail)).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_under_the_bearer_scheme_passes() {
        let token = Secret::new("s3cret");
        let passes = |value: &str| {
            carries(&Request::builder().header("authorization", value).body(Body::empty()).unwrap(), &token)
        };
        assert!(passes("Bearer s3cret") && passes("bearer s3cret"));
        for wrong in ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret ", "Basic s3cret", "s3cret"] {
            assert!(!passes(wrong), "{wrong:?}");
        }
        assert!(!carries(&Request::new(Body::empty()), &token));
    }
}
