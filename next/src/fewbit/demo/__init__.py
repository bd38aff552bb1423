# SPDX-License-Identifier: Apache-2.0
"""`fewbit demo`: small data in every common format and a small trained model, made from scikit-learn's digits."""
