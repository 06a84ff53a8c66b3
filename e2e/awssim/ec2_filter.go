package awssim

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// filter is one condition of a describe call; its values are alternatives.
type filter struct {
	name   string
	values []string
}

// maxFilterValues is EC2's limit for one call.
const maxFilterValues = 200

func (r *request) filters() ([]filter, *apiError) {
	var filters []filter
	total := 0
	for n := 1; ; n++ {
		prefix := "Filter." + strconv.Itoa(n) + "."
		name := r.form.Get(prefix + "Name")
		if name == "" {
			break
		}
		values := r.list(prefix + "Value.")
		total += len(values)
		filters = append(filters, filter{name, values})
		r.note("filter", name+"="+strings.Join(values, ","))
	}
	if total > maxFilterValues {
		return nil, badRequest("FilterLimitExceeded", "The maximum number of filter values specified on a single call is %d",
			maxFilterValues)
	}
	return filters, nil
}

// accepts compares with * and ?, as EC2 does.
func (f filter) accepts(value string) bool {
	return slices.Contains(f.values, value) || slices.ContainsFunc(f.values, func(pattern string) bool {
		if !strings.ContainsAny(pattern, "*?") {
			return false
		}
		ok, err := path.Match(asPathPattern.Replace(pattern), asPathPattern.Replace(value))
		return err == nil && ok
	})
}

// asPathPattern replaces the characters that are special to path.Match and not to EC2.
var asPathPattern = strings.NewReplacer("/", "\x00", "[", "\x01")

// accept reports whether the instance passes all filters.
func accept(i *instance, filters []filter) (bool, *apiError) {
	for _, f := range filters {
		var ok bool
		key, isTag := strings.CutPrefix(f.name, "tag:")
		switch {
		case isTag:
			value, has := i.Tags[key]
			ok = has && f.accepts(value)
		case f.name == "tag-key":
			ok = slices.ContainsFunc(slices.Collect(maps.Keys(i.Tags)), f.accepts)
		case f.name == "instance-id":
			ok = f.accepts(i.ID)
		case f.name == "private-dns-name":
			ok = f.accepts(i.PrivateDNSName)
		case f.name == "capacity-reservation-id":
			ok = i.Reservation != "" && f.accepts(i.Reservation)
		case f.name == "host-id":
			ok = i.Host != "" && f.accepts(i.Host)
		case f.name == "instance-state-name":
			ok = f.accepts(i.State)
		default:
			return false, badRequest("InvalidParameterValue", "The filter '%s' is invalid", f.name)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

func (t ec2Tag) passes(filters []filter) bool {
	fields := map[string]string{
		"resource-id": t.ResourceID, "resource-type": t.ResourceType, "key": t.Key,
		"value": t.Value,
	}
	return !slices.ContainsFunc(filters, func(f filter) bool { return !f.accepts(fields[f.name]) })
}
