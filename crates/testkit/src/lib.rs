//! Unpublished: tiny random model, slow oracles, proptest strategies.
