variable "name" {
  description = "Prefix of the names of all resources."
  type        = string
  default     = "nth-fan-out"
}

variable "tags" {
  description = "Tags of all resources that can have tags."
  type        = map(string)
  default     = {}
}

variable "alarm_topic" {
  description = "ARN of the SNS topic that the alarm notifies."
  type        = string
  default     = ""
}
