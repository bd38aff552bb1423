# SPDX-License-Identifier: Apache-2.0
"""How good answers about pictures are: functions of tensors and arrays, which tasks add up."""
