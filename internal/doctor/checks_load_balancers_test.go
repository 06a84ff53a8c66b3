package doctor

import (
	"errors"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
)

func TestLoadBalancers(t *testing.T) {
	groups := []string{"arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/web/73e2d6bc24d8a067"}
	tried := func(err error) func(*Facts) {
		return func(f *Facts) { f.Permissions = append(f.Permissions, Permission{Action: targetAction, Err: err}) }
	}
	for name, tt := range map[string]struct {
		set  func(*Facts)
		want Status
	}{
		"drains wait":              {tried(nil), OK},
		"without the permission":   {tried(&DeniedError{Permission: targetAction, Err: errors.New("no")}), Warning},
		"a try that failed":        {tried(errors.New("slow")), Unknown},
		"nothing tried":            {func(*Facts) {}, Unknown},
		"the option is off":        {func(f *Facts) { f.Options.Excludes = false }, OK},
		"no controller":            {func(f *Facts) { f.TargetGroups = Answer[[]string]{Err: ErrAbsent} }, OK},
		"no bindings of instances": {func(f *Facts) { f.TargetGroups.Value = nil }, OK},
		"bindings that cannot be read": {func(f *Facts) {
			f.TargetGroups = Answer[[]string]{Err: &DeniedError{Permission: "list targetgroupbindings.elbv2.k8s.aws", Err: errors.New("no")}}
		}, Unknown},
		"without the right": {func(f *Facts) {
			tried(nil)(f)
			f.Access = map[kube.Access]Answer[bool]{kube.LoadBalancers()[0]: {}}
		}, Warning},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			f.Options.Excludes, f.TargetGroups = true, value(groups)
			tt.set(f)
			if got := loadBalancers(f); got.status != tt.want {
				t.Errorf("%+v, want %v", got, tt.want)
			}
		})
	}
}

// The rights for load balancers are told of once, and as a warning.
func TestTheRightsForLoadBalancersFailNothing(t *testing.T) {
	f := healthy()
	for _, a := range kube.LoadBalancers() {
		f.Access[a] = Answer[bool]{}
	}
	if got := rbac(f); got.status != OK {
		t.Errorf("%+v", got)
	}
}
