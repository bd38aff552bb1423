# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning data in three calls: a configuration, a collator, batches on a device.

`config` names the data and the steps; `prepare` opens it and applies the steps to a `View`; `sampler` orders the
samples by seed and epoch; `loader` fetches batches, in this process or in workers, and moves them to the device.
"""

from fewbit.data.loading.collate import get_custom_data_collator
from fewbit.data.loading.config import DatasetConfig, generate_dataset_config
from fewbit.data.loading.loader import Loader, device_aware_data_loading

__all__ = [
    "DatasetConfig", "Loader", "device_aware_data_loading", "generate_dataset_config", "get_custom_data_collator",
]  # fmt: skip
